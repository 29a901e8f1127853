// Registration functions of freetoken._testing, one per testing_*.cc.
#pragma once
#include <pybind11/pybind11.h>

namespace freetoken::bindings {

namespace py = pybind11;

void register_kv(py::module_& m);
void register_sample(py::module_& m);

}  // namespace freetoken::bindings
