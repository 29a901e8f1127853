#include "spec/describe.h"

namespace freetoken::spec {
namespace {

constexpr const char* kNormKinds[] = {"none", "rms", "layer"};
constexpr const char* kActivations[] = {"silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai"};

}  // namespace

void describe(Fields& fields, NormSpec& norm) {
  Struct s(fields, norm);
  s.choice("kind", &NormSpec::kind, kNormKinds);
  s.flag("plus_one", &NormSpec::plus_one);
  s.flag("has_weight", &NormSpec::has_weight);
  s.flag("has_bias", &NormSpec::has_bias);
  s.real("eps", &NormSpec::eps, 0.0, 1.0);
  s.integer("group", &NormSpec::group, 0, kMaxHidden);
  s.flag("weight_first", &NormSpec::weight_first);
}

void describe(Fields& fields, GatedActivation& activation) {
  Struct s(fields, activation);
  s.choice("kind", &GatedActivation::kind, kActivations);
  s.real("alpha", &GatedActivation::alpha, -kMaxFactor, kMaxFactor);
  s.real("limit", &GatedActivation::limit, 0.0, kMaxFactor);
  s.real("up_offset", &GatedActivation::up_offset, -kMaxFactor, kMaxFactor);
  s.flag("limit_after", &GatedActivation::limit_after);
  s.flag("gated", &GatedActivation::gated);
}

void describe(Fields& fields, RopeTable& rope) {
  Struct s(fields, rope);
  s.reals("inv_freq", &RopeTable::inv_freq, 0.0, kMaxFactor, kMaxHeads, Need::kRequired);
  s.real("attention_factor", &RopeTable::attention_factor, 0.0, kMaxFactor);
  s.flag("interleaved", &RopeTable::interleaved);
  s.integer("offset", &RopeTable::offset, 0, kMaxHeads);
  s.flag("learned", &RopeTable::learned);
}

}  // namespace freetoken::spec
