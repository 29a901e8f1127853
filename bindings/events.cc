// Vocab and Event as Python classes.
#include <pybind11/numpy.h>

#include <memory>

#include "bindings.h"

namespace freetoken::bindings {
namespace {

// An event as Python sees it: converted once, fields read-only.
struct PyEvent {
  RequestId request;
  int choice;
  py::list tokens, logprobs, prompt_logprobs;
  py::str text, stop_match, error;
  py::object logits, finish;
  int prompt_tokens, cached_tokens, completion_tokens;
  int64_t time_us;
};

py::list logprob_list(const std::vector<TokenLogprob>& entries) {
  py::list list;
  for (const TokenLogprob& e : entries) list.append(py::make_tuple(e.token, e.logprob, e.top));
  return list;
}

py::object finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return py::none();
    case FinishReason::kStop: return py::str("stop");
    case FinishReason::kLength: return py::str("length");
    case FinishReason::kCancelled: return py::str("cancelled");
    case FinishReason::kTimeout: return py::str("timeout");
    case FinishReason::kError: return py::str("error");
  }
  return py::none();
}

py::object logits_array(const std::vector<float>& values, int vocab) {
  if (values.empty()) return py::none();
  return py::array_t<float>({py::ssize_t(values.size()) / vocab, py::ssize_t(vocab)}, values.data());
}

}  // namespace

py::object event_to_python(const Event& e, int vocab, int64_t time_us) {
  return py::cast(PyEvent{e.request, e.choice, py::cast(e.tokens), logprob_list(e.logprobs), logprob_list(e.prompt_logprobs),
                          py::str(e.text), py::str(e.stop_match), py::str(e.error.message()), logits_array(e.logits, vocab),
                          finish_name(e.finish), e.prompt_tokens, e.cached_tokens, e.completion_tokens, time_us});
}

void register_events(py::module_& m) {
  py::class_<Vocab>(m, "Vocab", "Token id -> bytes and flags (1 special, 2 unused).")
      .def(py::init([](const py::list& bytes, std::vector<uint8_t> flags) {
             Vocab vocab;
             for (const py::handle item : bytes) vocab.bytes.push_back(py::cast<std::string>(py::reinterpret_borrow<py::bytes>(item)));
             vocab.flags = std::move(flags);
             return vocab;
           }),
           py::arg("bytes"), py::arg("flags"))
      .def("__len__", [](const Vocab& v) { return v.bytes.size(); });
  py::class_<PyEvent>(m, "Event", "What one step did for one request.")
      .def_readonly("request", &PyEvent::request)
      .def_readonly("choice", &PyEvent::choice)
      .def_readonly("tokens", &PyEvent::tokens)
      .def_readonly("text", &PyEvent::text)
      .def_readonly("logprobs", &PyEvent::logprobs)
      .def_readonly("prompt_logprobs", &PyEvent::prompt_logprobs)
      .def_readonly("logits", &PyEvent::logits)
      .def_readonly("finish", &PyEvent::finish)
      .def_readonly("stop_match", &PyEvent::stop_match)
      .def_readonly("error", &PyEvent::error)
      .def_readonly("prompt_tokens", &PyEvent::prompt_tokens)
      .def_readonly("cached_tokens", &PyEvent::cached_tokens)
      .def_readonly("completion_tokens", &PyEvent::completion_tokens)
      .def_readonly("time_us", &PyEvent::time_us);
}

}  // namespace freetoken::bindings
