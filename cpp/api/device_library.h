// A shared object that exports ops/device_entry.h: opening it, and the CUDA one of this installation.
#pragma once
#include <memory>
#include <string>

#include "core/status.h"
#include "freetoken/device.h"
#include "ops/device_entry.h"

namespace freetoken {

// An opened library is never closed: its code must outlive every object it made.
struct DeviceLibrary {
  std::string path;
  DeviceEntry entry = nullptr;
  CudaProblem problem = CudaProblem::kNone;  // kMissing, kBroken or kAbi: entry is null
  std::string message;
};

DeviceLibrary open_device_library(const std::string& path);

// The library that probe_cuda() describes.
struct CudaLibrary {
  std::string path;         // empty: there is none, then places names where it was looked for
  std::string places;
  bool asked_for = false;
};
CudaLibrary find_cuda_library(const std::string& path);

// Asks `library` for what there is, or opens an Ops.
DeviceReply call_device(const DeviceLibrary& library, const DeviceOptions& options, bool open);

}  // namespace freetoken
