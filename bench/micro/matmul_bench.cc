// Matmul kernels beside their floors: few rows against the read bandwidth, many rows against the dot-product peak of
// the level. Floor and kernel alternate in short segments; figures are medians. Rates are per CPU time of the
// threads, so other processes disturb them less; `wall` gives the rate by the clock.
//
//   ft_bench_matmul [--isa LEVEL] [--format F] [--kind native|f32] [--threads N] [--mode gemv|gemm] [--n N] [--k K]
//                   [--rows M,M,...] [--reps R] [--mib MIB]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/fp_env.h"
#include "core/thread_pool.h"
#include "kernels/matmul.h"
#include "limits.h"
#include "machine.h"
#include "quant/t32.h"

namespace freetoken::bench {
namespace {

struct Options {
  IsaLevel isa = IsaLevel::kScalar;
  std::string format, kind = "native", mode;
  int threads = 2, n = 0, k = 0, reps = 7;
  size_t mib = 1280;
  std::vector<int> rows;
};

double clock_s(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

struct Seconds {
  double wall = 0, cpu = 0;  // cpu: mean over the threads
};

// Runs body(thread) on the pool and adds what it took.
template <class F>
void timed(ThreadPool& pool, Seconds& s, F&& body) {
  std::vector<double> cpu(size_t(pool.threads()) * 8);
  const double start = clock_s(CLOCK_MONOTONIC);
  pool.run([&](int thread) {
    const double begin = clock_s(CLOCK_THREAD_CPUTIME_ID);
    body(thread);
    cpu[size_t(thread) * 8] = clock_s(CLOCK_THREAD_CPUTIME_ID) - begin;
  });
  s.wall += clock_s(CLOCK_MONOTONIC) - start;
  for (double c : cpu) s.cpu += c / pool.threads();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void fail(const std::string& message) {
  std::fprintf(stderr, "ft_bench_matmul: %s\n", message.c_str());
  std::exit(2);
}

// Many copies of one random matrix, so that the memory read is as large as asked for.
class Matrices {
 public:
  Matrices(WeightFormat f, int n, int k, size_t bytes, int at_least) : f_(f), n_(n), k_(k) {
    std::mt19937 rng(1);
    std::vector<uint8_t> source(size_t(n) * source_row_bytes(f, k));
    for (auto& b : source) b = uint8_t(rng());
    const int block = traits(f).block_bytes;
    for (size_t at = 0; at < source.size(); at += size_t(block)) {
      const float v = float(int(rng() % 2001) - 1000) * 1e-4f;
      const uint16_t half = f == WeightFormat::kBF16 ? f32_to_bf16(v) : f32_to_f16(v);
      if (f == WeightFormat::kF32)
        std::memcpy(&source[at], &v, 4);
      else
        std::memcpy(&source[at + (f == WeightFormat::kQ6_K ? 208 : 0)], &half, 2);
      if (f == WeightFormat::kQ4_1) std::memcpy(&source[at + 2], &half, 2);
    }
    each_ = packed_bytes(f, n, k);
    count_ = std::max(at_least, int(bytes / each_));
    Result<Memory> memory = Memory::allocate(each_ * size_t(count_) + 8192);
    if (!memory.ok()) fail(memory.status().message());
    memory_ = std::move(*memory);
    pack_matrix(f, n, k, source.data(), memory_.data());
    for (int i = 1; i < count_; i++) std::memcpy(memory_.data() + each_ * size_t(i), memory_.data(), each_);
  }
  PackedMatrix at(int i) const { return {f_, n_, k_, data(i)}; }
  const uint8_t* data(int i) const { return memory_.data() + each_ * size_t(i); }
  size_t each() const { return each_; }
  int count() const { return count_; }

 private:
  WeightFormat f_;
  int n_, k_;
  size_t each_ = 0;
  int count_ = 0;
  Memory memory_;
};

struct Rows {
  std::vector<uint8_t> encoded;
  std::vector<float> values;
  std::vector<const uint8_t*> in;
  std::vector<float*> out;

  Rows(const MatmulKernels& kernels, ActivationKind kind, int m, int n, int k) {
    std::mt19937 rng(2);
    const size_t stride = align_up(activation_row_bytes(kind, k), 64), width = size_t(tile_count(n)) * kTileRows;
    encoded.resize(stride * size_t(m));
    values.resize(width * size_t(m));
    std::vector<float> x(static_cast<size_t>(k));
    for (int i = 0; i < m; i++) {
      for (auto& v : x) v = float(int(rng() % 20001) - 10000) * 1e-4f;
      kernels.encode_row(kind, x.data(), k, encoded.data() + stride * size_t(i));
      in.push_back(encoded.data() + stride * size_t(i));
      out.push_back(values.data() + width * size_t(i));
    }
  }
};

// A wrong kernel has no speed.
void verify(const Options& o, const PackedMatrix& w, ActivationKind kind, Rows& rows) {
  const int m = std::min(int(rows.in.size()), 13);
  Rows expected(matmul_kernels(IsaLevel::kScalar), kind, m, w.n, w.k);
  const int tiles = std::min(tile_count(w.n), 3);
  const MatmulKernels& scalar = matmul_kernels(IsaLevel::kScalar);
  scalar.matmul_tiles(w, 0, tiles, m, kind, expected.in.data(), expected.out.data(), nullptr);
  matmul_kernels(o.isa).matmul_tiles(w, 0, tiles, m, kind, rows.in.data(), rows.out.data(), nullptr);
  for (int i = 0; i < m; i++)
    if (std::memcmp(rows.out[size_t(i)], expected.out[size_t(i)], size_t(tiles) * kTileRows * 4))
      fail(std::string(isa_name(o.isa)) + " differs from scalar; not timed");
}

struct Case {
  WeightFormat format;
  ActivationKind kind;
  int n, k, m;
};

// Tiles of thread `thread`.
int share(int tiles, int thread, int threads) { return tiles * thread / threads; }

void report(const char* what, const Options& o, const Case& c, const char* unit, const char* floor_name,
            const std::vector<double>& rate, const std::vector<double>& wall, const std::vector<double>& floor) {
  std::vector<double> ratio;
  for (size_t i = 0; i < rate.size(); i++) ratio.push_back(rate[i] / floor[i]);
  std::printf("{\"bench\": \"%s\", \"isa\": \"%s\", \"format\": \"%s\", \"kind\": \"%s\", \"threads\": %d, \"n\": %d, "
              "\"k\": %d, \"rows\": %d, \"%s\": %.1f, \"wall\": %.1f, \"%s\": %.1f, \"ratio\": %.3f, "
              "\"best_ratio\": %.3f}\n",
              what, isa_name(o.isa), traits(c.format).name, c.kind == ActivationKind::kF32 ? "f32" : "native",
              o.threads, c.n, c.k, c.m, unit, median(rate), median(wall), floor_name, median(floor), median(ratio),
              *std::max_element(ratio.begin(), ratio.end()));
  std::fflush(stdout);
}

void bench_gemv(const Options& o, ThreadPool& pool, const Case& c, const Matrices& w) {
  const MatmulKernels& kernels = matmul_kernels(o.isa);
  Rows rows(kernels, c.kind, c.m, c.n, c.k);
  verify(o, w.at(0), c.kind, rows);
  const int segment = std::max(1, w.count() / 16), tiles = tile_count(c.n);
  std::vector<double> rate, wall, floor;
  for (int rep = 0; rep < o.reps; rep++) {
    Seconds read, kernel;
    double bytes = 0;
    for (int first = 0; first + segment <= w.count(); first += segment) {
      const size_t part = w.each() * size_t(segment) / size_t(pool.threads()) & ~size_t(255);
      const uint8_t* other = w.data((first + w.count() / 2) % (w.count() - segment + 1));  // not what comes next
      timed(pool, read, [&](int thread) { read_memory(o.isa, other + part * size_t(thread), part); });
      timed(pool, kernel, [&](int thread) {
        const int begin = share(tiles, thread, o.threads), end = share(tiles, thread + 1, o.threads);
        const size_t skip = tile_bytes(c.format, c.k) * size_t(begin);
        for (int i = first; i < first + segment; i++)
          kernels.matmul_tiles(w.at(i), begin, end, c.m, c.kind, rows.in.data(), rows.out.data(),
                               i + 1 < w.count() ? w.data(i + 1) + skip : nullptr);
      });
      bytes += double(w.each()) * segment;
    }
    rate.push_back(bytes / kernel.cpu * 1e-9);
    wall.push_back(bytes / kernel.wall * 1e-9);
    floor.push_back(bytes / read.cpu * 1e-9);
  }
  report("gemv", o, c, "gb_s", "read_gb_s", rate, wall, floor);
}

void bench_gemm(const Options& o, ThreadPool& pool, const Case& c, const Matrices& w) {
  const MatmulKernels& kernels = matmul_kernels(o.isa);
  Rows rows(kernels, c.kind, c.m, c.n, c.k);
  verify(o, w.at(0), c.kind, rows);
  const DotType type = c.kind == ActivationKind::kF32    ? DotType::kFp32
                       : c.kind == ActivationKind::kBF16 ? DotType::kBf16
                                                         : DotType::kInt8;
  const double operations = 2.0 * c.m * c.n * c.k;
  const int tiles = tile_count(c.n), inner = std::max(1, int(4e9 / operations));
  std::vector<double> rate, wall, floor;
  int at = 0;
  for (int rep = 0; rep < o.reps; rep++) {
    Seconds dots, kernel;
    double dot_operations = 0;
    for (int part = 0; part < 4; part++) {
      std::vector<double> done(size_t(o.threads) * 8);
      timed(pool, dots, [&](int thread) { done[size_t(thread) * 8] = run_dots(o.isa, type, 1500000); });
      for (double d : done) dot_operations += d;
      timed(pool, kernel, [&](int thread) {
        for (int i = 0; i < inner; i++)
          kernels.matmul_tiles(w.at((at + i) % w.count()), share(tiles, thread, o.threads),
                               share(tiles, thread + 1, o.threads), c.m, c.kind, rows.in.data(), rows.out.data(),
                               nullptr);
      });
      at += inner;
    }
    rate.push_back(4 * operations * inner / kernel.cpu * 1e-9);
    wall.push_back(4 * operations * inner / kernel.wall * 1e-9);
    floor.push_back(dot_operations / dots.cpu * 1e-9);
  }
  report("gemm", o, c, "gop_s", "peak_gop_s", rate, wall, floor);
}

Options parse(int argc, char** argv) {
  Options o;
  o.isa = supported_isa_levels().back();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--format") o.format = value;
    else if (name == "--kind") o.kind = value;
    else if (name == "--mode") o.mode = value;
    else if (name == "--threads") o.threads = std::stoi(value);
    else if (name == "--n") o.n = std::stoi(value);
    else if (name == "--k") o.k = std::stoi(value);
    else if (name == "--reps") o.reps = std::stoi(value);
    else if (name == "--mib") o.mib = size_t(std::stoi(value));
    else if (name == "--rows") {
      std::istringstream list(value);
      for (std::string m; std::getline(list, m, ',');) o.rows.push_back(std::stoi(m));
    } else if (name == "--isa") {
      bool found = false;
      for (IsaLevel level : supported_isa_levels())
        if (value == isa_name(level)) o.isa = level, found = true;
      if (!found) fail("--isa " + value + ": not a level of this CPU");
    } else {
      fail(name + ": unknown option");
    }
  }
  if (argc % 2 == 0) fail(std::string(argv[argc - 1]) + ": needs a value");
  if (o.threads < 1 || o.reps < 1) fail("--threads and --reps must be at least 1");
  return o;
}

}  // namespace
}  // namespace freetoken::bench

int main(int argc, char** argv) {
  using namespace freetoken;
  using namespace freetoken::bench;
  const Options o = parse(argc, argv);
  set_denormals_to_zero();
  ThreadPool pool(o.threads);
  std::printf("%s\n", machine_json().c_str());
  for (int f = 0; f < kWeightFormats; f++) {
    const WeightFormat format = WeightFormat(f);
    if (!o.format.empty() && o.format != traits(format).name) continue;
    const ActivationKind kind = o.kind == "f32" ? ActivationKind::kF32 : traits(format).activation;
    const auto rows = [&](std::vector<int> standard) { return o.rows.empty() ? standard : o.rows; };
    if (o.mode != "gemm") {
      const int n = o.n ? o.n : 1024, k = o.k ? o.k : 1024;
      const Matrices w(format, n, k, o.mib << 20, 2);
      for (int m : rows({1, 2, 4, 8})) bench_gemv(o, pool, {format, kind, n, k, m}, w);
    }
    if (o.mode != "gemv") {
      const int n = o.n ? o.n : 2048, k = o.k ? o.k : 2048;
      const Matrices w(format, n, k, 0, 8);
      for (int m : rows({16, 64, 512})) bench_gemm(o, pool, {format, kind, n, k, m}, w);
    }
  }
  return 0;
}
