// Packs a range of tiles of one tensor from the checkpoint's rows.
#pragma once
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "platform/file.h"
#include "weights/load_plan.h"

namespace freetoken {

// The row of the stored tensor that is row `row` of the canonical one. Stored rotary pairs lie as [heads][dim / 2][2],
// canonical rows as [heads][2][dim / 2]; without rotary heads the order is the same.
int stored_row(const WeightEntry& entry, int row);

// How many tiles of the tensor are read at once within kLoadBufferBytes, at least one.
int tiles_per_read(const LoadTensor& tensor);

// Reads and packs tiles [begin, end) of a matrix into its packed form at `packed`; `buffer` is scratch that is kept between
// calls. Errors name file and tensor.
Status pack_tiles(const LoadTensor& tensor, const std::vector<File>& files, int begin, int end, uint8_t* packed,
                  std::vector<uint8_t>* buffer);

// Reads a vector and converts it to fp32.
Status pack_vector(const LoadTensor& tensor, const std::vector<File>& files, float* out, std::vector<uint8_t>* buffer);

}  // namespace freetoken
