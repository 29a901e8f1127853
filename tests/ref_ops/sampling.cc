// Sampler slots and sample().
#include "ref_ops/executor.h"

namespace freetoken::ref {

void Executor::open_sampler(int slot, const OwnedSamplerInit& owned) {
  SamplerInit init = owned.init;
  init.params = &owned.params;
  init.prompt = owned.prompt;
  init.sampled = owned.sampled;
  init.end_tokens = owned.end_tokens;
  slots_[size_t(slot)] = {std::make_unique<SamplerState>(init, sampler_.vocab()), init.sample_index};
}

void Executor::advance_sampler(int slot, std::span<const int32_t> tokens) {
  call_ = "advance_sampler";
  SamplerState* state = slots_[size_t(slot)].state.get();
  if (state)
    state->advance(tokens);
  else
    violations_.add("advance_sampler: slot " + std::to_string(slot) + " was never opened");
}

void Executor::run(const SampleCall& c) {
  const View logits = input("logits", c.logits);
  if (!sampled_in_step_) sampled_.clear();
  sampled_in_step_ = true;
  for (const SampleRow& row : step_->samples[c.data].rows) {
    SampleResult& result = results_[c.data].emplace_back();
    const float* values = logits.row(row.logits_row);
    result.token = row.target;
    if (row.target < 0) {
      const SamplerSlot& slot = slots_[size_t(row.slot)];
      if (!slot.state) {
        violation("slot " + std::to_string(row.slot) + " was never opened");
        sampled_.push_back(-1);
        continue;
      }
      result.token = sampler_.sample(values, *slot.state, row.ahead, uint32_t(row.position), uint32_t(slot.sample_index));
    }
    sampled_.push_back(result.token);
    if (row.logprobs < 0 || result.token < 0) continue;
    RowLogprobs logprobs = sampler_.logprobs(values, result.token, row.logprobs);
    result.logprob = logprobs.token_logprob;
    result.top = std::move(logprobs.top);
  }
}

}  // namespace freetoken::ref
