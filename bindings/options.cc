// Python dicts and keyword arguments to the structs of the public API.
#include <functional>
#include <map>

#include "bindings.h"

namespace freetoken::bindings {
namespace {

using Setter = std::function<void(py::handle)>;

void apply(const py::dict& fields, const std::map<std::string, Setter>& setters, const char* what) {
  for (const auto& [key, value] : fields) {
    const std::string name = py::str(key);
    const auto it = setters.find(name);
    if (it == setters.end()) raise_if_error(InvalidArgument(std::string("unknown ") + what + " " + name));
    if (value.is_none()) continue;
    try {
      it->second(value);
    } catch (const py::cast_error&) {
      raise_if_error(InvalidArgument(std::string(what) + " " + name + " has the wrong type or is out of range: " +
                                     std::string(py::str(py::repr(value))).substr(0, 80)));
    }
  }
}

template <class T>
Setter set(T& field) {
  return [&field](py::handle value) { field = value.cast<T>(); };
}

template <class E>
Setter choose(E& field, const char* name, std::map<std::string, E> names) {
  return [&field, name, names](py::handle value) {
    const std::string text = value.cast<std::string>();
    const auto it = names.find(text);
    if (it == names.end()) {
      std::string all;
      for (const auto& [n, e] : names) all += (all.empty() ? "" : ", ") + n;
      raise_if_error(InvalidArgument(std::string(name) + " is " + text + ", choose one of " + all));
    }
    field = it->second;
  };
}

}  // namespace

LoadOptions load_options(const py::dict& fields) {
  LoadOptions o;
  Setter vocab = [&](py::handle value) { o.vocab = value.cast<Vocab>(); };
  apply(fields,
        {{"model_spec_json", set(o.model_spec_json)},
         {"weight_table_json", set(o.weight_table_json)},
         {"checkpoint_directory", set(o.checkpoint_directory)},
         {"vocab", vocab},
         {"eos_token_ids", set(o.eos_token_ids)},
         {"threads", set(o.threads)},
         {"kv_dtype", choose<KvDType>(o.kv_dtype, "kv_dtype", {{"bfloat16", KvDType::kBF16}, {"float32", KvDType::kF32}})},
         {"activations", choose<ActivationMode>(o.activations, "activations",
                                                {{"auto", ActivationMode::kAuto}, {"float32", ActivationMode::kFloat32}})},
         {"max_running_requests", set(o.max_running_requests)},
         {"max_queued_requests", set(o.max_queued_requests)},
         {"max_batch_tokens", set(o.max_batch_tokens)},
         {"max_itl_us", set(o.max_itl_us)},
         {"prefix_cache", set(o.prefix_cache)},
         {"drafts", set(o.drafts)},
         {"device", choose<DeviceMode>(o.device, "device",
                                       {{"auto", DeviceMode::kAuto}, {"cpu", DeviceMode::kCpu}, {"cuda", DeviceMode::kCuda}})},
         {"device_ordinal", set(o.device_ordinal)},
         {"device_memory_limit_bytes", set(o.device_memory_limit_bytes)},
         {"expert_slots", set(o.expert_slots)},
         {"device_library", set(o.device_library)},
         {"chaos_seed", set(o.chaos_seed)},
         {"max_sequence_tokens", set(o.max_sequence_tokens)},
         {"kv_tokens", set(o.kv_tokens)},
         {"memory_limit_bytes", set(o.memory_limit_bytes)}},
        "load option");
  return o;
}

Request request_from(const py::kwargs& fields) {
  Request r;
  SamplingParams& s = r.sampling;
  Setter seed = [&](py::handle value) { s.seed = value.cast<uint64_t>(); };
  apply(fields,
        {{"prompt", set(r.prompt)},
         {"max_tokens", set(r.max_tokens)},
         {"min_tokens", set(r.min_tokens)},
         {"n", set(r.n)},
         {"priority", set(r.priority)},
         {"timeout_us", set(r.timeout_us)},
         {"temperature", set(s.temperature)},
         {"min_p", set(s.min_p)},
         {"presence_penalty", set(s.presence_penalty)},
         {"frequency_penalty", set(s.frequency_penalty)},
         {"repetition_penalty", set(s.repetition_penalty)},
         {"logit_bias", set(s.logit_bias)},
         {"top_k", set(s.top_k)},
         {"top_p", set(s.top_p)},
         {"seed", seed},
         {"stop", set(r.stop)},
         {"stop_token_ids", set(r.stop_token_ids)},
         {"ignore_eos", set(r.ignore_eos)},
         {"emit_special_tokens", set(r.emit_special_tokens)},
         {"logprobs", set(r.logprobs)},
         {"prompt_logprobs", set(r.prompt_logprobs)},
         {"logits", choose<LogitsMode>(r.logits, "logits",
                                       {{"none", LogitsMode::kNone}, {"sampled", LogitsMode::kSampled}, {"all", LogitsMode::kAll}})}},
        "request field");
  return r;
}

}  // namespace freetoken::bindings
