// The C structs of DLPack's ABI (dmlc.github.io/dlpack, version 0.x: the capsule named "dltensor", which every producer gives
// when no max_version is asked for and every consumer takes). Written from its specification: no package of the header is
// among our build dependencies, and these two structs are all that crosses.
#pragma once
#include <cstdint>

namespace freetoken::bindings {

constexpr int32_t kDlCpu = 1;                                      // DLDeviceType
enum DlCode : uint8_t { kDlInt = 0, kDlUint = 1, kDlFloat = 2, kDlBfloat = 4 };  // DLDataTypeCode

struct DlDevice {
  int32_t type, id;
};
struct DlDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;      // in elements; null = dense, row-major
  uint64_t byte_offset;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManagedTensor*);
};
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManagedTensor) == 64);

}  // namespace freetoken::bindings
