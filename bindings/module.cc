#include "bindings.h"

namespace freetoken::bindings {
namespace {

PyObject *base_error, *config_error, *resource_error, *unsupported_error, *internal_error;

}  // namespace

void register_errors(py::module_& m) {
  auto make = [&](const char* name, PyObject* base) {
    PyObject* type = PyErr_NewException((std::string("freetoken._core.") + name).c_str(), base, nullptr);
    if (!type) throw py::error_already_set();
    m.attr(name) = py::reinterpret_borrow<py::object>(type);
    return type;
  };
  base_error = make("FreeTokenError", PyExc_RuntimeError);
  config_error = make("ConfigError", base_error);
  resource_error = make("ResourceError", base_error);
  unsupported_error = make("UnsupportedError", base_error);
  internal_error = make("InternalError", base_error);
}

void raise_if_error(const Status& status) {
  if (status.ok()) return;
  PyObject* type = internal_error;
  switch (status.code()) {
    case StatusCode::kInvalidArgument: case StatusCode::kNotFound: case StatusCode::kIoError: type = config_error; break;
    case StatusCode::kResourceExhausted: type = resource_error; break;
    case StatusCode::kUnsupported: type = unsupported_error; break;
    default: break;
  }
  PyErr_SetString(type, status.message().c_str());
  throw py::error_already_set();
}

}  // namespace freetoken::bindings

PYBIND11_MODULE(_core, m) {
  m.doc() = "FreeToken's C++ core.";
  freetoken::bindings::register_errors(m);
  freetoken::bindings::register_events(m);
  freetoken::bindings::register_engine(m);
  freetoken::bindings::register_device(m);
  freetoken::bindings::register_checkpoint(m);
  freetoken::bindings::register_torch_ops(m);
}
