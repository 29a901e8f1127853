// freetoken._testing: kernels and formats, for the Python tests only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "kernels/matmul.h"
#include "platform/cpu_features.h"
#include "quant/t32.h"
#include "testing.h"

namespace py = pybind11;
using namespace freetoken;

namespace {

WeightFormat known_format(const std::string& name) {
  if (const auto format = format_named(name)) return *format;
  throw py::value_error("no weight format " + name);
}

const uint8_t* checked(const py::bytes& data, size_t expected) {
  const std::string_view view = data;
  if (view.size() != expected)
    throw py::value_error("expected " + std::to_string(expected) + " bytes, got " + std::to_string(view.size()));
  return reinterpret_cast<const uint8_t*>(view.data());
}

py::array_t<float> decode(const std::string& format, int k, const py::bytes& row) {
  const WeightFormat f = known_format(format);
  py::array_t<float> out(k);
  decode_row(f, k, checked(row, source_row_bytes(f, k)), out.mutable_data());
  return out;
}

py::bytes pack(const std::string& format, int n, int k, const py::bytes& source) {
  const WeightFormat f = known_format(format);
  std::string packed(packed_bytes(f, n, k), '\0');
  pack_matrix(f, n, k, checked(source, source_row_bytes(f, k) * size_t(n)), reinterpret_cast<uint8_t*>(packed.data()));
  return packed;
}

py::bytes unpack(const std::string& format, int n, int k, const py::bytes& packed) {
  const WeightFormat f = known_format(format);
  std::string source(source_row_bytes(f, k) * size_t(n), '\0');
  unpack_matrix(f, n, k, checked(packed, packed_bytes(f, n, k)), reinterpret_cast<uint8_t*>(source.data()));
  return source;
}

}  // namespace

PYBIND11_MODULE(_testing, m) {
  m.doc() = "Formats and kernels of the core, for tests.";
  m.def("decode", &decode, py::arg("format"), py::arg("k"), py::arg("data"));
  m.def("pack", &pack, py::arg("format"), py::arg("n"), py::arg("k"), py::arg("data"));
  m.def("unpack", &unpack, py::arg("format"), py::arg("n"), py::arg("k"), py::arg("data"));
  m.def("isa_levels", [] {
    std::vector<std::string> names;
    for (IsaLevel level : supported_isa_levels()) names.push_back(isa_name(level));
    return names;
  });
  freetoken::bindings::register_sample(m);
  freetoken::bindings::register_kv(m);
}
