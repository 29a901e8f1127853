// Shared by the files of the extension: registration functions and the conversion of Status to exceptions.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "freetoken/engine.h"

namespace freetoken::bindings {

namespace py = pybind11;

void register_errors(py::module_& m);
void register_events(py::module_& m);
void register_engine(py::module_& m);
void register_device(py::module_& m);
void register_checkpoint(py::module_& m);
void register_torch_ops(py::module_& m);

// Raises the Python exception of a Status that is not ok.
void raise_if_error(const Status& status);
// LoadOptions from a dict of its fields; an unknown key is a ConfigError.
LoadOptions load_options(const py::dict& options);
// Request from keyword arguments; an unknown one is a ConfigError.
Request request_from(const py::kwargs& fields);
py::object event_to_python(const Event& event, int vocab, int64_t time_us);

}  // namespace freetoken::bindings
