#include "cuda/ops/sampler_slots.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "cuda/runtime/cuda_status.h"

namespace freetoken::cuda {
namespace {

constexpr float kBanBias = -100.0f;  // SamplingParams::logit_bias

// Biases by id, added up; the order of the list must not matter.
std::map<int32_t, float> biases_of(const SamplingParams& params, int vocab) {
  std::vector<std::pair<int32_t, float>> list = params.logit_bias;
  std::sort(list.begin(), list.end());
  std::map<int32_t, float> biases;
  for (const auto& [id, bias] : list)
    if (id >= 0 && id < vocab) biases[id] += bias <= kBanBias ? -std::numeric_limits<float>::infinity() : bias;
  return biases;
}

}  // namespace

Status SamplerSlots::reserve(int slots, int vocab) {
  vocab_ = vocab;
  opened_.clear();
  opened_.resize(size_t(slots));
  FT_ASSIGN_OR_RETURN(slots_, DeviceBuffer::allocate(account_, "the sampler slots", size_t(slots) * sizeof(SamplerSlot)));
  return {};
}

Status SamplerSlots::open(int slot, const SamplerInit& init) {
  const SamplingParams& params = *init.params;
  Opened& own = opened_[size_t(slot)];
  SamplerSlot value;
  value.temperature = params.temperature;
  value.top_p = params.top_p;
  value.min_p = params.min_p;
  value.top_k = params.top_k;
  value.seed = init.seed;
  value.sample_index = init.sample_index;
  value.presence_penalty = params.presence_penalty;
  value.frequency_penalty = params.frequency_penalty;
  value.repetition_penalty = params.repetition_penalty;
  value.min_tokens = init.min_tokens;
  const bool repeats = params.repetition_penalty != 1.0f;
  const bool penalises = repeats || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;

  // The arrays that stay with the slot.
  std::vector<uint32_t> words;
  const std::set<int32_t> ends(init.end_tokens.begin(), init.end_tokens.end());
  for (const int32_t id : ends)
    if (init.min_tokens > 0 && id >= 0 && id < vocab_) words.push_back(uint32_t(id));
  value.end_count = int32_t(words.size());
  const std::map<int32_t, float> biases = biases_of(params, vocab_);
  value.bias_count = int32_t(biases.size());
  for (const auto& [id, bias] : biases) words.push_back(uint32_t(id));
  for (const auto& [id, bias] : biases) words.push_back(std::bit_cast<uint32_t>(bias));
  const size_t bytes = words.size() * sizeof(uint32_t);
  if (own.ids.bytes() < bytes) {
    FT_ASSIGN_OR_RETURN(own.ids, DeviceBuffer::allocate(account_, "a sampler slot", std::max<size_t>(bytes, 1024)));
  }
  if (bytes > 0) {
    FT_ASSIGN_OR_RETURN(const uint8_t* staged, uploads_.stage(words.data(), bytes));
    FT_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(own.ids.data(), staged, bytes, cudaMemcpyHostToDevice, stream_), "open_sampler");
  }
  value.end_tokens = own.ids.as<int32_t>();
  value.bias_ids = value.end_tokens + value.end_count;
  value.bias = reinterpret_cast<const float*>(value.bias_ids + value.bias_count);
  if (penalises) {
    if (own.history.bytes() == 0) {
      FT_ASSIGN_OR_RETURN(own.history, DeviceBuffer::allocate(account_, "a sampler slot", size_t(vocab_) * sizeof(uint32_t)));
    }
    value.history = own.history.as<uint32_t>();
  }

  // Prompt and history, read once. One upload: both must be there when the kernel runs.
  std::vector<int32_t> tokens;
  if (repeats) tokens.assign(init.prompt.begin(), init.prompt.end());
  const int prompt_count = int(tokens.size());
  if (penalises) tokens.insert(tokens.end(), init.sampled.begin(), init.sampled.end());
  const int32_t* uploaded = nullptr;
  if (!tokens.empty()) {
    FT_ASSIGN_OR_RETURN(const uint8_t* at, uploads_.upload(tokens.data(), tokens.size() * sizeof(int32_t)));
    uploaded = reinterpret_cast<const int32_t*>(at);
  }
  own.open = true;
  return cuda_status(launch_open_sampler(slots_.as<SamplerSlot>(), slot, value, uploaded, prompt_count,
                                         penalises ? uploaded + prompt_count : nullptr, int(init.sampled.size()), vocab_, stream_),
                     "open_sampler");
}

Status SamplerSlots::advance(int slot, std::span<const int32_t> tokens) {
  if (tokens.empty()) return {};
  FT_ASSIGN_OR_RETURN(const uint8_t* at, uploads_.upload(tokens.data(), tokens.size_bytes()));
  return cuda_status(launch_advance_sampler(slots_.as<SamplerSlot>(), slot, reinterpret_cast<const int32_t*>(at),
                                            int(tokens.size()), vocab_, stream_), "advance_sampler");
}

}  // namespace freetoken::cuda
