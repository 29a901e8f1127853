// Which devices there are, for hosts that want to know before they load a model.
#pragma once
#include <cstdint>
#include <string>

#include "freetoken/engine.h"
#include "freetoken/status.h"

namespace freetoken {

enum class CudaProblem {
  kNone,
  kMissing,       // no library
  kBroken,        // there is a file, but it cannot be loaded or is no device library
  kAbi,           // the library is of another version
  kNoDriver,
  kOldDriver,
  kNoDevice,
  kNoSuchDevice,  // another number of a GPU was asked for than there are
  kNoDeviceCode,  // the library holds no code for this GPU
  kFailed,        // the GPU does not work
};

// Numbers are 0 and texts empty as far as it is not known.
struct CudaReport {
  CudaProblem problem = CudaProblem::kMissing;
  std::string message;          // one line, empty without a problem: what, the number, the way out
  std::string library;          // the file that was opened, or where it was looked for
  bool asked_for = false;       // by a path or by FREETOKEN_CUDA_LIB, and not merely looked for
  std::string code;             // what it was compiled for: "sm_80 sm_90 compute_80"
  std::string name;             // of the GPU
  int devices = 0;
  int compute_capability = 0;   // 10 * major + minor
  int driver_version = 0;       // 1000 * major + 10 * minor of the newest CUDA the driver supports
  int64_t total_bytes = 0, free_bytes = 0;
};

// What the CPU backend computes with.
struct HostReport {
  std::string isa;              // level of the kernels; empty with a message where none can be used
  std::string message;
  int cores = 0;                // that this process may use
  int64_t memory_bytes = 0;     // that this process may take, by the machine and its cgroup
};
FREETOKEN_API HostReport probe_host();

// Opens the CUDA library and asks it for the GPU `ordinal`. The library is `path`; where that is empty FREETOKEN_CUDA_LIB,
// or libfreetoken_cuda.so beside this library or in lib/ beside it.
FREETOKEN_API CudaReport probe_cuda(const std::string& path = "", int ordinal = 0);

// "missing", "no_driver" ...; "" for kNone.
FREETOKEN_API const char* cuda_problem_name(CudaProblem problem);

}  // namespace freetoken
