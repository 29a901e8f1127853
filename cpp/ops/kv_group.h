// KvGroup: layers whose keys and values are kept together, page by page.
//
// A page holds page_tokens positions of every layer of its group. The order of bytes inside a page is the device's own;
// whatever reads or writes them goes through Ops.
#pragma once
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace freetoken {

enum class Retention { kAll, kWindow, kState };

struct KvLayer {
  int kv_heads = 0;
  int qk_dim = 0, v_dim = 0;  // per head
};

struct KvGroup {
  Retention retention = Retention::kAll;
  int window = 0;             // kWindow: positions that must stay readable
  DType dtype = DType::kBF16; // kBF16 or kF32
  int page_tokens = 64;
  std::vector<KvLayer> layers;

  int64_t page_bytes() const {
    int64_t values = 0;
    for (const KvLayer& l : layers) values += int64_t(l.kv_heads) * (l.qk_dim + l.v_dim);
    return values * page_tokens * dtype_bytes(dtype);
  }
};

// Copy all bytes of page `from` to page `to`, both of one group.
struct PageCopy {
  int group = 0;
  int32_t from = 0, to = 0;
};

}  // namespace freetoken
