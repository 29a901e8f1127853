// The functions on plain memory (freetoken/tensor_ops.h) on tensors of any library that speaks DLPack. A tensor comes in
// through its __dlpack__() and is held until the call has ended; a result goes out as an object with __dlpack__(), whose
// memory lives as long as it or any tensor made from it.
#include "freetoken/tensor_ops.h"

#include <algorithm>
#include <memory>
#include <new>

#include "bindings.h"
#include "dlpack.h"

namespace freetoken::bindings {
namespace {

constexpr char kCapsule[] = "dltensor", kUsedCapsule[] = "used_dltensor";
constexpr std::align_val_t kAlignment{256};  // DLPack's

[[noreturn]] void fail(const std::string& message) {
  raise_if_error(InvalidArgument(message));
  throw std::logic_error("unreachable");
}

std::string shape_text(const DlTensor& t) {
  std::string s = "[";
  for (int i = 0; i < t.ndim; i++) s += (i ? ", " : "") + std::to_string(t.shape[i]);
  return s + "]";
}

std::string dtype_name(DlDataType t) {
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  return (t.code < 7 ? kinds[t.code] : "code" + std::to_string(t.code) + "-") + std::to_string(t.bits);
}

// A tensor of the caller: on the CPU, dense, row-major. `what` is its argument, for errors.
class TensorIn {
 public:
  TensorIn(const py::object& object, std::string what) : what_(std::move(what)) {
    if (!py::hasattr(object, "__dlpack__") || !py::hasattr(object, "__dlpack_device__"))
      fail(what_ + " is a " + std::string(py::str(py::type::of(object).attr("__name__"))) + ": must be a tensor (with __dlpack__)");
    const auto device = py::cast<std::pair<int, int>>(object.attr("__dlpack_device__")());
    if (device.first != kDlCpu)
      fail(what_ + " is on a device of DLPack type " + std::to_string(device.first) +
           ": must be on the CPU (1); move it with .cpu()");
    capsule_ = object.attr("__dlpack__")();
    managed_ = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(capsule_.ptr(), kCapsule));
    if (!managed_) throw py::error_already_set();
    if (PyCapsule_SetName(capsule_.ptr(), kUsedCapsule) != 0) throw py::error_already_set();
    owner_.reset(managed_);
    check_dense();
  }

  const std::string& what() const { return what_; }
  DlDataType dtype() const { return managed_->tensor.dtype; }
  int ndim() const { return managed_->tensor.ndim; }
  int64_t size(int i) const { return managed_->tensor.shape[i]; }
  std::string shape() const { return shape_text(managed_->tensor); }
  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(static_cast<const uint8_t*>(managed_->tensor.data) + managed_->tensor.byte_offset);
  }

  // -1 = any size.
  TensorIn& expect_shape(std::initializer_list<int64_t> sizes, const char* meaning) {
    bool good = ndim() == int(sizes.size());
    int i = 0;
    for (const int64_t n : sizes) good = good && (n < 0 || size(i) == n), i++;
    if (good) return *this;
    std::string wanted;
    for (const int64_t n : sizes) wanted += (wanted.empty() ? "" : ", ") + (n < 0 ? std::string("any") : std::to_string(n));
    fail(what_ + " has shape " + shape() + ": must be " + meaning + " [" + wanted + "]");
  }
  TensorIn& expect_dtype(DlCode code, int bits, const char* name) {
    if (is(code, bits)) return *this;
    fail(what_ + " is " + dtype_name(dtype()) + ": must be " + name);
  }
  bool is(DlCode code, int bits) const { return dtype().code == code && dtype().bits == bits && dtype().lanes == 1; }

 private:
  struct Release {
    void operator()(DlManagedTensor* m) const {
      if (m->deleter) m->deleter(m);
    }
  };

  void check_dense() const {
    const DlTensor& t = managed_->tensor;
    int64_t stride = 1;
    for (int i = 0; i < t.ndim; i++)
      if (t.shape[i] == 0) return;
    for (int i = t.ndim - 1; t.strides && i >= 0; i--) {
      if (t.shape[i] != 1 && t.strides[i] != stride)
        fail(what_ + " of shape " + shape() + " is not contiguous: use .contiguous()");
      stride *= t.shape[i];
    }
  }

  std::string what_;
  py::object capsule_;
  DlManagedTensor* managed_ = nullptr;
  std::unique_ptr<DlManagedTensor, Release> owner_;
};

TensorIn float_matrix(const py::object& object, const char* what, int64_t cols, const char* meaning) {
  TensorIn t(object, what);
  t.expect_dtype(kDlFloat, 32, "float32").expect_shape({-1, cols}, meaning);
  return t;
}

TensorIn int_vector(const py::object& object, const char* what, int64_t size) {
  TensorIn t(object, what);
  t.expect_dtype(kDlInt, 32, "int32").expect_shape({size}, "[sequences] =");
  return t;
}

// A new [rows, cols] fp32 matrix.
class TensorOut {
 public:
  TensorOut(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(rows, cols, &bytes) || __builtin_mul_overflow(bytes, int64_t(4), &bytes)) throw std::bad_alloc();
    memory_ = std::shared_ptr<void>(::operator new(size_t(std::max<int64_t>(bytes, 1)), kAlignment),
                                    [](void* p) { ::operator delete(p, kAlignment); });
  }
  float* data() const { return static_cast<float*>(memory_.get()); }

  py::capsule dlpack() const {
    struct Export {
      DlManagedTensor managed;
      int64_t shape[2], strides[2];
      std::shared_ptr<void> memory;
    };
    Export* e = new Export{{}, {rows_, cols_}, {cols_, 1}, memory_};
    e->managed = {{memory_.get(), {kDlCpu, 0}, 2, {kDlFloat, 32, 1}, e->shape, e->strides, 0}, e,
                  [](DlManagedTensor* m) { delete static_cast<Export*>(m->context); }};
    PyObject* capsule = PyCapsule_New(&e->managed, kCapsule, [](PyObject* c) {
      if (!PyCapsule_IsValid(c, kCapsule)) return;  // taken: its consumer deletes it
      auto* m = static_cast<DlManagedTensor*>(PyCapsule_GetPointer(c, kCapsule));
      m->deleter(m);
    });
    if (!capsule) {
      delete e;
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::capsule>(capsule);
  }

 private:
  int64_t rows_, cols_;
  std::shared_ptr<void> memory_;
};

template <class F>
void without_gil(F&& work) {
  Status status;
  {
    const py::gil_scoped_release released;
    status = work();
  }
  raise_if_error(status);
}

MatmulInput matmul_input(const std::string& activations) {
  if (activations == "auto") return MatmulInput::kAuto;
  if (activations == "float32") return MatmulInput::kFloat32;
  fail("activations is '" + activations + "': must be 'auto' or 'float32'");
}

// Matrices of n rows: [n, k] of a float type, or [n, bytes of a row] of uint8 and a format. A stack of experts has one
// dimension more.
WeightSource weight_source(const TensorIn& t, const py::object& format, int ndim) {
  const std::string given = format.is_none() ? "" : py::cast<std::string>(format);
  const char* meaning = ndim == 2 ? "[rows, columns]" : "[experts, rows, columns]";
  if (t.ndim() != ndim) fail(t.what() + " has shape " + t.shape() + ": must be " + meaning);
  WeightSource source{.data = t.data<uint8_t>(), .n = t.size(ndim - 2), .k = t.size(ndim - 1)};
  if (t.is(kDlUint, 8)) {
    if (given.empty()) fail(t.what() + " is uint8: its format must be named (q8_0, q4_0, q4_1, q6_k, f16, bf16, f32)");
    const int64_t bytes = source.k;
    source.format = given;
    source.k = weight_row_columns(given, bytes);
    if (source.k == 0) {
      if (weight_row_bytes(given, 256) == 0)  // whole blocks of every format
        fail(t.what() + ": no weight format '" + given + "'; known are f32, f16, bf16, q8_0, q4_0, q4_1, q6_k");
      fail(t.what() + ": rows of " + std::to_string(bytes) + " bytes are no whole blocks of " + given);
    }
    return source;
  }
  source.format = t.is(kDlFloat, 32) ? "f32" : t.is(kDlFloat, 16) ? "f16" : t.is(kDlBfloat, 16) ? "bf16" : "";
  if (source.format.empty())
    fail(t.what() + " is " + dtype_name(t.dtype()) + ": must be float32, bfloat16 or float16, or uint8 with a format");
  if (!given.empty() && given != source.format)
    fail(t.what() + " is " + source.format + ", its format is given as " + given + ": quantised weights come as uint8");
  return source;
}

std::unique_ptr<PackedLinear> pack_linear(const py::object& weight, const py::object& bias, const py::object& format) {
  const TensorIn w(weight, "weight");
  const WeightSource source = weight_source(w, format, 2);
  std::unique_ptr<TensorIn> b;
  if (!bias.is_none()) {
    b = std::make_unique<TensorIn>(bias, "bias");
    b->expect_dtype(kDlFloat, 32, "float32").expect_shape({source.n}, "[rows of weight] =");
  }
  std::unique_ptr<PackedLinear> packed;
  without_gil([&] { return PackedLinear::pack(source, b ? b->data<float>() : nullptr, &packed); });
  return packed;
}

TensorOut linear(const PackedLinear& w, const py::object& x, const std::string& activations) {
  const MatmulInput input = matmul_input(activations);
  const TensorIn in = float_matrix(x, "x", w.k(), "[rows, k] =");
  TensorOut out(in.size(0), w.n());
  without_gil([&] { return w.run(in.data<float>(), in.size(0), input, out.data()); });
  return out;
}

std::unique_ptr<PackedExperts> pack_experts(const py::object& gate, const py::object& up, const py::object& down,
                                            const py::object& gate_format, const py::object& up_format,
                                            const py::object& down_format) {
  const TensorIn g(gate, "gate"), u(up, "up"), d(down, "down");
  const WeightSource gs = weight_source(g, gate_format, 3), us = weight_source(u, up_format, 3),
                     ds = weight_source(d, down_format, 3);
  if (u.size(0) != g.size(0) || d.size(0) != g.size(0))
    fail("gate, up and down have " + std::to_string(g.size(0)) + ", " + std::to_string(u.size(0)) + " and " +
         std::to_string(d.size(0)) + " experts: must be one number");
  std::unique_ptr<PackedExperts> packed;
  without_gil([&] { return PackedExperts::pack(g.size(0), gs, us, ds, &packed); });
  return packed;
}

TensorOut moe(const PackedExperts& w, const py::object& x, const py::object& expert_ids, const py::object& weights,
              const std::string& activations) {
  const MatmulInput input = matmul_input(activations);
  const TensorIn in = float_matrix(x, "x", w.hidden(), "[rows, hidden] =");
  TensorIn ids(expert_ids, "expert_ids"), shares(weights, "weights");
  ids.expect_dtype(kDlInt, 32, "int32").expect_shape({in.size(0), -1}, "[rows, experts per row] =");
  shares.expect_dtype(kDlFloat, 32, "float32").expect_shape({in.size(0), ids.size(1)}, "[rows, experts per row] =");
  TensorOut out(in.size(0), w.hidden());
  without_gil([&] {
    return w.run(in.data<float>(), in.size(0), ids.data<int32_t>(), shares.data<float>(), ids.size(1), input, out.data());
  });
  return out;
}

std::unique_ptr<PagedKv> make_paged_kv(int64_t pages, int64_t kv_heads, int64_t qk_dim, int64_t v_dim, int64_t layers,
                                       const std::string& dtype) {
  if (dtype != "bfloat16" && dtype != "float32") fail("dtype is '" + dtype + "': must be 'bfloat16' or 'float32'");
  std::unique_ptr<PagedKv> kv;
  without_gil([&] {
    return PagedKv::create({.pages = pages, .layers = layers, .kv_heads = kv_heads, .qk_dim = qk_dim, .v_dim = v_dim,
                            .float32 = dtype == "float32"}, &kv);
  });
  return kv;
}

TensorOut attend(PagedKv& kv, const py::object& q, const py::object& k, const py::object& v, const py::object& page_table,
                 const py::object& context_lengths, const py::object& row_counts, float scale, int64_t window, int64_t layer) {
  const PagedKvOptions& o = kv.options();
  TensorIn qt(q, "q"), kt(k, "k"), vt(v, "v"), table(page_table, "page_table");
  kt.expect_dtype(kDlFloat, 32, "float32").expect_shape({-1, o.kv_heads, o.qk_dim}, "[rows, kv_heads, qk_dim] =");
  const int64_t rows = kt.size(0);
  vt.expect_dtype(kDlFloat, 32, "float32").expect_shape({rows, o.kv_heads, o.v_dim}, "[rows, kv_heads, v_dim] =");
  qt.expect_dtype(kDlFloat, 32, "float32").expect_shape({rows, -1, o.qk_dim}, "[rows, q_heads, qk_dim] =");
  table.expect_dtype(kDlInt, 32, "int32").expect_shape({-1, -1}, "[sequences, pages] =");
  const TensorIn contexts = int_vector(context_lengths, "context_lengths", table.size(0));
  const TensorIn counts = int_vector(row_counts, "row_counts", table.size(0));
  const int64_t q_heads = qt.size(1);
  TensorOut out(rows, q_heads * o.v_dim);
  without_gil([&] {
    return kv.attend({.layer = layer, .q_heads = q_heads, .sequences = table.size(0), .table_width = table.size(1),
                      .page_table = table.data<int32_t>(), .context_lengths = contexts.data<int32_t>(),
                      .row_counts = counts.data<int32_t>(), .scale = scale, .window = window},
                     rows, qt.data<float>(), kt.data<float>(), vt.data<float>(), out.data());
  });
  return out;
}

}  // namespace

void register_torch_ops(py::module_& m) {
  py::class_<TensorOut>(m, "TensorResult", "A float32 matrix on the CPU, for from_dlpack().")
      .def("__dlpack__", [](const TensorOut& t, const py::kwargs&) { return t.dlpack(); })
      .def("__dlpack_device__", [](const TensorOut&) { return std::make_pair(kDlCpu, 0); });
  py::class_<PackedLinear>(m, "PackedLinear")
      .def(py::init(&pack_linear), py::arg("weight"), py::arg("bias"), py::arg("format"))
      .def_property_readonly("n", &PackedLinear::n)
      .def_property_readonly("k", &PackedLinear::k)
      .def_property_readonly("packed_bytes", &PackedLinear::packed_bytes)
      .def("run", &linear, py::arg("x"), py::arg("activations"));
  py::class_<PackedExperts>(m, "PackedExperts")
      .def(py::init(&pack_experts), py::arg("gate"), py::arg("up"), py::arg("down"), py::arg("gate_format"),
           py::arg("up_format"), py::arg("down_format"))
      .def_property_readonly("experts", &PackedExperts::experts)
      .def_property_readonly("hidden", &PackedExperts::hidden)
      .def_property_readonly("inner", &PackedExperts::inner)
      .def_property_readonly("packed_bytes", &PackedExperts::packed_bytes)
      .def("run", &moe, py::arg("x"), py::arg("expert_ids"), py::arg("weights"), py::arg("activations"));
  py::class_<PagedKv>(m, "PagedKv")
      .def(py::init(&make_paged_kv), py::arg("pages"), py::arg("kv_heads"), py::arg("qk_dim"), py::arg("v_dim"),
           py::arg("layers"), py::arg("dtype"))
      .def_property_readonly("pages", [](const PagedKv& kv) { return kv.options().pages; })
      .def_readonly_static("page_tokens", &PagedKv::kPageTokens)
      .def("attend", &attend, py::arg("q"), py::arg("k"), py::arg("v"), py::arg("page_table"), py::arg("context_lengths"),
           py::arg("row_counts"), py::arg("scale"), py::arg("window"), py::arg("layer"));
  m.def("set_tensor_threads", [](int threads) { without_gil([&] { return set_tensor_threads(threads); }); },
        py::arg("threads"));
  m.def("tensor_threads", &tensor_threads, py::call_guard<py::gil_scoped_release>());
}

}  // namespace freetoken::bindings
