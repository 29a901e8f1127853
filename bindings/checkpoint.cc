// FTW checkpoints as functions.
#include "freetoken/checkpoint.h"

#include "bindings.h"

namespace freetoken::bindings {
namespace {

// Python's callback(done_bytes, total_bytes) from any thread; what it raises is reported and otherwise ignored.
CheckpointProgress progress_of(const py::object& callback) {
  if (callback.is_none()) return nullptr;
  return [callback = callback.ptr()](int64_t done, int64_t total) {
    const py::gil_scoped_acquire gil;
    try {
      py::reinterpret_borrow<py::object>(callback)(done, total);
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("freetoken checkpoint progress");
    }
  };
}

void write(const py::dict& fields, const std::string& directory, int64_t shard_bytes, const py::dict& files,
           const py::object& progress) {
  const LoadOptions options = load_options(fields);
  HostFiles contents;
  for (const auto& [name, bytes] : files) contents.emplace_back(py::str(name), py::cast<std::string>(py::reinterpret_borrow<py::bytes>(bytes)));
  Status status;
  {
    const py::gil_scoped_release released;
    status = write_checkpoint(options, directory, shard_bytes, contents, progress_of(progress));
  }
  raise_if_error(status);
}

py::dict read(const std::string& directory) {
  LoadOptions options;
  HostFiles files;
  Status status;
  {
    const py::gil_scoped_release released;
    status = read_checkpoint(directory, &options, &files);
  }
  raise_if_error(status);
  py::list bytes;
  for (const std::string& b : options.vocab.bytes) bytes.append(py::bytes(b));
  py::dict host;
  for (const auto& [name, contents] : files) host[py::str(name)] = py::bytes(contents);
  py::dict d;
  d["model_spec_json"] = options.model_spec_json;
  d["vocab_bytes"] = bytes;
  d["vocab_flags"] = py::cast(std::vector<int>(options.vocab.flags.begin(), options.vocab.flags.end()));
  d["eos_token_ids"] = options.eos_token_ids;
  d["files"] = host;
  return d;
}

void verify(const std::string& directory, const py::object& progress) {
  Status status;
  {
    const py::gil_scoped_release released;
    status = verify_checkpoint(directory, progress_of(progress));
  }
  raise_if_error(status);
}

}  // namespace

void register_checkpoint(py::module_& m) {
  m.def("write_checkpoint", &write, py::arg("options"), py::arg("directory"), py::arg("shard_bytes"), py::arg("files"),
        py::arg("progress") = py::none(), "Packs a model into an FTW directory; see freetoken/checkpoint.h.");
  m.def("read_checkpoint", &read, py::arg("directory"),
        "The spec, the vocabulary and the host's files of an FTW directory; reads no weights.");
  m.def("verify_checkpoint", &verify, py::arg("directory"), py::arg("progress") = py::none(),
        "Compares all checksums of an FTW directory.");
}

}  // namespace freetoken::bindings
