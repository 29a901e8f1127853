// What there is to compute on.
#include "freetoken/device.h"

#include "bindings.h"

namespace freetoken::bindings {
namespace {

py::dict cuda_report(const std::string& library, int ordinal) {
  CudaReport r;
  {
    const py::gil_scoped_release released;
    r = probe_cuda(library, ordinal);
  }
  py::dict d;
  d["problem"] = cuda_problem_name(r.problem);
  d["message"] = r.message;
  d["library"] = r.library;
  d["asked_for"] = r.asked_for;
  d["code"] = r.code;
  d["name"] = r.name;
  d["devices"] = r.devices;
  d["compute_capability"] = r.compute_capability;
  d["driver_version"] = r.driver_version;
  d["total_bytes"] = r.total_bytes;
  d["free_bytes"] = r.free_bytes;
  return d;
}

py::dict host_report() {
  const HostReport r = probe_host();
  py::dict d;
  d["isa"] = r.isa;
  d["message"] = r.message;
  d["cores"] = r.cores;
  d["memory_bytes"] = r.memory_bytes;
  return d;
}

}  // namespace

void register_device(py::module_& m) {
  m.def("probe_cuda", &cuda_report, py::arg("library") = "", py::arg("ordinal") = 0,
        "What the CUDA backend says of a GPU, or why there is none: see freetoken/device.h.");
  m.def("probe_host", &host_report, "What the CPU backend computes with: see freetoken/device.h.");
}

}  // namespace freetoken::bindings
