// Expert matmuls on the device: an entry gives the bits of a dense matmul with that expert's matrix, whichever form ran
// and whatever the other entries are; groups are a permutation; the sum over ranks is the fma chain.
#include "cuda/kernels/moe_matmul.h"

#include <algorithm>
#include <memory>

#include "cuda/kernels/matmul_support.h"

namespace freetoken::cuda {
namespace {

using freetoken::testing::random_rows;
using testing::DeviceArray;
using testing::Input;
using testing::random_values;

constexpr float kUntouched = -77.0f;

// Experts whose matrix lies behind `offset` bytes of something else, each in an allocation of its own.
struct Experts {
  WeightFormat format;
  int n, k, offset;
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> memory;
  std::unique_ptr<DeviceArray<uint64_t>> table;

  Experts(WeightFormat f, int count, int n, int k, std::mt19937& rng, int missing = -1)
      : format(f), n(n), k(k), offset(192) {
    std::vector<uint64_t> addresses;
    for (int e = 0; e < count; e++) {
      const std::vector<uint8_t> source = random_rows(f, n, k, rng);
      std::vector<uint8_t> bytes(size_t(offset) + packed_bytes(f, n, k), 0xff);
      pack_matrix(f, n, k, source.data(), bytes.data() + offset);
      memory.push_back(std::make_unique<DeviceArray<uint8_t>>(bytes));
      addresses.push_back(e == missing ? 0 : reinterpret_cast<uint64_t>(memory.back()->data()));
    }
    table = std::make_unique<DeviceArray<uint64_t>>(addresses);
  }
  ExpertMatrix matrix(int rows) const { return {format, offset, rows, k}; }
  const uint8_t* weight(int e) const { return memory[size_t(e)]->data() + offset; }
};

struct Choice {
  int rows, ranks, experts;
  std::vector<int32_t> ids;
  DeviceArray<int32_t> device;
  Choice(int rows, int ranks, int experts, std::mt19937& rng)
      : rows(rows), ranks(ranks), experts(experts), ids(pick(rng)), device(ids) {}
  std::vector<int32_t> pick(std::mt19937& rng) const {
    std::vector<int32_t> chosen, all(static_cast<size_t>(experts));
    for (int e = 0; e < experts; e++) all[size_t(e)] = e;
    for (int r = 0; r < rows; r++) {
      std::shuffle(all.begin(), all.end(), rng);
      chosen.insert(chosen.end(), all.begin(), all.begin() + ranks);
    }
    return chosen;
  }
  ExpertChoice with(const uint64_t* extents, int begin = 0, int end = 1 << 20) const {
    return {device.data(), rows, ranks, experts, begin, std::min(end, experts), extents};
  }
};

struct Groups {
  DeviceArray<uint8_t> memory;
  ExpertGroups groups;
  explicit Groups(const ExpertChoice& choice)
      : memory(expert_groups_bytes(choice.entries(), choice.experts)),
        groups(expert_groups(memory.data(), choice.entries(), choice.experts)) {
    EXPECT_EQ(int(launch_group_experts(choice, groups, nullptr)), 0);
  }
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++)
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << " at " << i << ": " << a[i] << ", " << b[i];
}

TEST(DeviceGroups, AreThePermutationByExpert) {
  std::mt19937 rng(21);
  struct Case {
    int rows, ranks, experts, begin, end;
  };
  for (const Case& c : {Case{1, 1, 1, 0, 1}, Case{5, 2, 4, 0, 4}, Case{70, 8, 32, 0, 32}, Case{70, 8, 32, 5, 19},
                        Case{300, 4, 8, 0, 8}, Case{9, 6, 1024, 0, 1024}, Case{40, 2, 7, 3, 3}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows, " + std::to_string(c.experts) + " experts");
    const Choice choice(c.rows, c.ranks, c.experts, rng);
    const ExpertChoice device = choice.with(nullptr, c.begin, c.end);
    const Groups g(device);
    const std::vector<uint8_t> bytes = g.memory.read();
    const auto value = [&](const int32_t* p, int i) {
      const size_t at = size_t(reinterpret_cast<const uint8_t*>(p + i) - g.memory.data());
      EXPECT_LE(at + 4, bytes.size());
      return int32_t(load_u32(bytes.data() + at));
    };
    const int tiles = value(g.groups.tile_count, 0);
    ASSERT_LE(tiles, g.groups.max_tiles);
    std::vector<int> seen(choice.ids.size());
    int last_expert = -1, place = 0, last_size = 0;
    for (int t = 0; t < tiles; t++) {
      const int e = value(g.groups.tile_expert, t), size = value(g.groups.tile_size, t);
      ASSERT_GE(e, last_expert);
      if (e == last_expert) {
        ASSERT_EQ(last_size, g.groups.tile_entries) << "only an expert's last tile may be short";
      }
      ASSERT_GE(size, 1);
      ASSERT_LE(size, g.groups.tile_entries);
      ASSERT_EQ(value(g.groups.tile_begin, t), place);
      for (int i = 0; i < size; i++) {
        const int entry = value(g.groups.order, place + i);
        ASSERT_EQ(choice.ids[size_t(entry)], e);
        seen[size_t(entry)]++;
      }
      place += size;
      last_expert = e;
      last_size = size;
    }
    for (size_t i = 0; i < seen.size(); i++)
      ASSERT_EQ(seen[i], choice.ids[i] >= c.begin && choice.ids[i] < c.end) << "entry " << i;
  }
  const Choice wide(1, 1, kMaxGroupedExperts + 1, rng);
  EXPECT_EQ(int(launch_group_experts(wide.with(nullptr), {}, nullptr)), int(cudaErrorInvalidValue));
}

class DeviceExperts : public ::testing::TestWithParam<WeightFormat> {};

// Both inputs (the row's, the entry's), both tile widths, and a range of experts: what is outside stays as it was.
TEST_P(DeviceExperts, GiveTheBitsOfADenseMatmul) {
  std::mt19937 rng(22);
  const int k = std::max(traits(GetParam()).block_k, 96), n = 72;
  struct Case {
    int rows, ranks, experts, begin, end;
    EntryInput input;
  };
  for (const Case& c : {Case{1, 4, 8, 0, 8, EntryInput::kRow}, Case{3, 2, 4, 0, 4, EntryInput::kEntry},
                        Case{7, 3, 5, 1, 4, EntryInput::kRow}, Case{40, 2, 3, 0, 3, EntryInput::kEntry},
                        Case{40, 2, 3, 1, 3, EntryInput::kRow}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " rows, " + std::to_string(c.ranks) + " of " + std::to_string(c.experts));
    const Experts experts(GetParam(), c.experts, n, k, rng);
    const Choice choice(c.rows, c.ranks, c.experts, rng);
    const int entries = c.rows * c.ranks, stride = n + 4;
    const Input x(c.input == EntryInput::kRow ? c.rows : entries, k, rng);
    const DeviceArray<float> dx(x.values);
    std::vector<float> expected(size_t(entries) * stride, kUntouched);
    for (int entry = 0; entry < entries; entry++) {
      const int e = choice.ids[size_t(entry)];
      if (e < c.begin || e >= c.end) continue;
      const int row = c.input == EntryInput::kRow ? entry / c.ranks : entry;
      const DeviceArray<float> out(size_t(n) + 4);
      const LinearTarget target{experts.weight(e), GetParam(), n, nullptr, out.data(), stride};
      FT_EXPECT_CUDA(launch_linear({dx.data() + size_t(row) * x.stride, x.stride}, 1, k, &target, 1, nullptr));
      const std::vector<float> values = out.read();
      std::copy(values.begin(), values.begin() + n, expected.begin() + size_t(entry) * stride);
    }
    const ExpertChoice device = choice.with(experts.table->data(), c.begin, c.end);
    const Groups groups(device);
    for (const ExpertGroups* g : {static_cast<const ExpertGroups*>(nullptr), &groups.groups}) {
      const DeviceArray<float> out(std::vector<float>(expected.size(), kUntouched));
      FT_EXPECT_CUDA(launch_expert_linear(device, g, experts.matrix(n), {dx.data(), x.stride}, c.input, out.data(),
                                          stride, nullptr));
      expect_same_bits(out.read(), expected, g ? "grouped" : "by entry");
    }
  }
}

TEST_P(DeviceExperts, GatedGivesTheBitsOfTheDenseOne) {
  std::mt19937 rng(23);
  const int k = std::max(traits(GetParam()).block_k, 64), inner = 40, n = 2 * int(align_up(inner, 16)), stride = 44;
  const int count = 4;
  const Experts experts(GetParam(), count, n, k, rng);  // the rows of padding hold weights here: nothing may show them
  for (const int rows : {2, 33}) {
    const Choice choice(rows, 2, count, rng);
    const int entries = rows * 2;
    const Input x(rows, k, rng);
    const DeviceArray<float> dx(x.values);
    std::vector<float> expected(size_t(entries) * stride, kUntouched);
    for (int entry = 0; entry < entries; entry++) {
      const DeviceArray<float> out(static_cast<size_t>(stride));
      const GatedTarget target{
          experts.weight(choice.ids[size_t(entry)]), GetParam(), inner, nullptr, nullptr, out.data(), stride};
      FT_EXPECT_CUDA(launch_gated({dx.data() + size_t(entry / 2) * x.stride, x.stride}, 1, k, target, nullptr));
      const std::vector<float> values = out.read();
      std::copy(values.begin(), values.begin() + inner, expected.begin() + size_t(entry) * stride);
    }
    const ExpertChoice device = choice.with(experts.table->data());
    const Groups groups(device);
    for (const ExpertGroups* g : {static_cast<const ExpertGroups*>(nullptr), &groups.groups}) {
      const DeviceArray<float> out(std::vector<float>(expected.size(), kUntouched));
      FT_EXPECT_CUDA(
          launch_expert_gated(device, g, experts.matrix(inner), {dx.data(), x.stride}, out.data(), stride, nullptr));
      expect_same_bits(out.read(), expected, g ? "grouped" : "by entry");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DeviceExperts,
                         ::testing::Values(WeightFormat::kBF16, WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                           WeightFormat::kQ4_1, WeightFormat::kQ6_K),
                         testing::format_case);

// An expert without an extent: NaN in its entries, the others as ever.
TEST(DeviceExperts, AMissingExtentIsNaN) {
  std::mt19937 rng(24);
  const int n = 33, k = 64, stride = 36, missing = 2;
  const Experts experts(WeightFormat::kQ4_0, 5, n, k, rng, missing);
  const Choice choice(12, 2, 5, rng);
  const Input x(12, k, rng);
  const DeviceArray<float> dx(x.values);
  const ExpertChoice device = choice.with(experts.table->data());
  const Groups groups(device);
  for (const ExpertGroups* g : {static_cast<const ExpertGroups*>(nullptr), &groups.groups}) {
    const DeviceArray<float> out(std::vector<float>(size_t(24) * stride, kUntouched));
    FT_EXPECT_CUDA(launch_expert_linear(device, g, experts.matrix(n), {dx.data(), x.stride}, EntryInput::kRow,
                                        out.data(), stride, nullptr));
    const std::vector<float> values = out.read();
    for (int entry = 0; entry < 24; entry++)
      for (int i = 0; i < n; i++)
        ASSERT_EQ(std::isnan(values[size_t(entry) * stride + i]), choice.ids[size_t(entry)] == missing)
            << entry << ", " << i;
  }
}

TEST(DeviceExperts, RefusesPlainFormats) {
  EXPECT_FALSE(expert_supports(WeightFormat::kF32));
  ExpertChoice choice;
  choice.rows = choice.ranks = choice.experts = choice.end = 1;
  const ExpertMatrix matrix{WeightFormat::kF32, 0, 32, 32};
  EXPECT_EQ(int(launch_expert_linear(choice, nullptr, matrix, {}, EntryInput::kRow, nullptr, 0, nullptr)),
            int(cudaErrorNotSupported));
}

TEST(DeviceCombine, IsTheChainInRankOrder) {
  std::mt19937 rng(25);
  const int rows = 3, ranks = 5, n = 300, stride = 304;
  const std::vector<float> entries = random_values(size_t(rows) * ranks * stride, rng),
                           weights = random_values(size_t(rows) * ranks, rng);
  const DeviceArray<float> device_entries(entries), device_weights(weights),
      out(std::vector<float>(size_t(rows) * stride, kUntouched));
  FT_EXPECT_CUDA(launch_combine_experts(device_entries.data(), stride, device_weights.data(), rows, ranks, n,
                                        out.data(), stride, nullptr));
  const std::vector<float> values = out.read();
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < stride; i++) {
      float sum = 0.0f;
      for (int rank = 0; rank < ranks; rank++)
        sum = std::fma(weights[size_t(r * ranks + rank)], entries[size_t(r * ranks + rank) * stride + i], sum);
      ASSERT_EQ(values[size_t(r) * stride + i], i < n ? sum : kUntouched) << r << ", " << i;
    }
}

}  // namespace
}  // namespace freetoken::cuda
