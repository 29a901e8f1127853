// The sampler, its state and drafting, for tests: what the engine calls per row, with arrays and lists.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "sample/draft_gain.h"
#include "sample/ngram_draft.h"
#include "sample/philox.h"
#include "sample/sampler.h"
#include "testing.h"

namespace freetoken::bindings {
namespace {

using Row = py::array_t<float, py::array::c_style | py::array::forcecast>;
using Tokens = std::vector<int32_t>;

const float* checked(const Row& logits, int vocab) {
  if (logits.ndim() != 1 || logits.size() != vocab)
    throw py::value_error("expected a row of " + std::to_string(vocab) + " logits");
  return logits.data();
}

template <class T>
void take(py::dict& settings, const char* name, T& value) {
  if (settings.contains(name)) value = settings.attr("pop")(name).cast<T>();
}

// Keyword arguments: the fields of SamplingParams, and seed, prompt, sampled, min_tokens, end_tokens.
SamplerState state_from(int vocab, const py::kwargs& keywords) {
  py::dict settings = keywords;
  SamplingParams params;
  SamplerInit init;
  Tokens prompt, sampled, end_tokens;
  take(settings, "temperature", params.temperature);
  take(settings, "top_k", params.top_k);
  take(settings, "top_p", params.top_p);
  take(settings, "min_p", params.min_p);
  take(settings, "presence_penalty", params.presence_penalty);
  take(settings, "frequency_penalty", params.frequency_penalty);
  take(settings, "repetition_penalty", params.repetition_penalty);
  take(settings, "logit_bias", params.logit_bias);
  take(settings, "seed", init.seed);
  take(settings, "prompt", prompt);
  take(settings, "sampled", sampled);
  take(settings, "min_tokens", init.min_tokens);
  take(settings, "end_tokens", end_tokens);
  if (!settings.empty()) throw py::value_error("no setting " + py::str(settings).cast<std::string>());
  init.params = &params;
  init.prompt = prompt, init.sampled = sampled, init.end_tokens = end_tokens;
  return SamplerState(init, vocab);
}

// The row as the filters see it: unusable ids at -inf.
Row adjusted_row(const SamplerState& state, const Row& logits, const std::vector<uint8_t>& usable,
                 const Tokens& ahead) {
  RowScan scan(usable);
  const float* values = checked(logits, scan.vocab());
  scan.load(values);
  state.adjust(values, ahead, scan);
  Row out(scan.vocab());
  for (int block = 0; block < scan.blocks(); block++)
    std::copy_n(scan.block_data(block), scan.block_size(block), out.mutable_data() + block * kScanBlock);
  return out;
}

}  // namespace

void register_sample(py::module_& m) {
  m.def("draw_uniform", &draw_uniform, py::arg("seed"), py::arg("position"), py::arg("sample_index"));

  py::class_<SamplerState>(m, "SamplerState")
      .def(py::init(&state_from), py::arg("vocab"))
      .def("advance", [](SamplerState& state, const Tokens& tokens) { state.advance(tokens); })
      .def("adjusted_row", &adjusted_row, py::arg("logits"), py::arg("usable"), py::arg("ahead") = Tokens())
      .def_property_readonly("sampled_tokens", &SamplerState::sampled_tokens);

  py::class_<Sampler>(m, "Sampler")
      .def(py::init<const std::vector<uint8_t>&>(), py::arg("usable"))
      .def(
          "sample",
          [](Sampler& sampler, const Row& logits, const SamplerState& state, const Tokens& ahead, uint32_t position,
             uint32_t sample_index) {
            return sampler.sample(checked(logits, sampler.vocab()), state, ahead, position, sample_index);
          },
          py::arg("logits"), py::arg("state"), py::arg("ahead") = Tokens(), py::arg("position") = 0,
          py::arg("sample_index") = 0);

  py::class_<NgramDraft>(m, "NgramDraft")
      .def(py::init<int>(), py::arg("window_tokens") = NgramDraft::kDefaultWindow)
      .def("advance", [](NgramDraft& draft, const Tokens& tokens) { draft.advance(tokens); })
      .def("propose",
           [](const NgramDraft& draft, int count) {
             Tokens tokens;
             draft.propose(count, tokens);
             return tokens;
           })
      .def_property_readonly("memory_bytes", &NgramDraft::memory_bytes);

  py::class_<DraftGain>(m, "DraftGain")
      .def(py::init<>())
      .def("choose", [](DraftGain& gain, int available,
                        const std::vector<double>& step_cost) { return gain.choose(available, step_cost); })
      .def("record", &DraftGain::record)
      .def("acceptance", &DraftGain::acceptance)
      .def_property_readonly("paying", &DraftGain::paying);
}

}  // namespace freetoken::bindings
