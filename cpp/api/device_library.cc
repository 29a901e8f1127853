#include "api/device_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/log.h"

namespace freetoken {
namespace {

namespace fs = std::filesystem;

constexpr char kCudaName[] = "libfreetoken_cuda.so";
constexpr char kInstall[] = "install it with: FREETOKEN_CUDA=1 pip install .";

void log_line(int level, const char* text) {
  log(level >= 0 && level <= int(LogLevel::kError) ? LogLevel(level) : LogLevel::kError, text);
}

DeviceLibrary refused(std::string path, CudaProblem problem, std::string message) {
  return {std::move(path), nullptr, problem, std::move(message)};
}

// The folder of the shared object that this function is part of: the Python extension or libfreetoken.so.
fs::path own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<void*>(&own_folder), &info) || !info.dli_fname) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path(info.dli_fname).parent_path() : file.parent_path();
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

}  // namespace

CudaLibrary find_cuda_library(const std::string& path) {
  if (!path.empty()) return {path, path, true};
  const char* named = std::getenv("FREETOKEN_CUDA_LIB");
  if (named && *named) return {named, named, true};
  CudaLibrary found;
  const fs::path own = own_folder();
  for (const fs::path& folder : {own, own / "lib"}) {
    if (found.path.empty() && is_file(folder / kCudaName)) found.path = (folder / kCudaName).string();
    found.places += (found.places.empty() ? "" : ", ") + folder.string();
  }
  return found;
}

DeviceLibrary open_device_library(const std::string& path) {
  // A path without a slash is looked up by the loader, as dlopen does.
  std::error_code error;
  if (path.find('/') != std::string::npos && !fs::exists(path, error))
    return refused(path, CudaProblem::kMissing, "there is no device library at " + path + "; correct or leave out the name");
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    return refused(path, CudaProblem::kBroken, "the device library cannot be loaded: " + std::string(dlerror()) +
                                                   "; build it again on this machine with: FREETOKEN_CUDA=1 pip install .");
  const auto entry = reinterpret_cast<DeviceEntry>(dlsym(handle, kDeviceEntry));
  if (!entry)
    return refused(path, CudaProblem::kBroken, path + " is not a device library: it exports no " + kDeviceEntry + "; " + kInstall);
  DeviceReply reply;
  DeviceRequest request;
  request.open = false;
  const uint32_t theirs = entry(0, &request, &reply);  // 0 is no ABI number: only the library's own comes back
  if (theirs != kDeviceAbi)
    return refused(path, CudaProblem::kAbi,
                   path + " has device ABI " + std::to_string(theirs) + ", this core needs " + std::to_string(kDeviceAbi) +
                       ": the two are of different versions; build both together with: FREETOKEN_CUDA=1 pip install .");
  return {path, entry, CudaProblem::kNone, ""};
}

DeviceReply call_device(const DeviceLibrary& library, const DeviceOptions& options, bool open) {
  DeviceRequest request{.host = {.log = log_line}, .options = options, .open = open};
  DeviceReply reply;
  library.entry(kDeviceAbi, &request, &reply);
  return reply;
}

}  // namespace freetoken
