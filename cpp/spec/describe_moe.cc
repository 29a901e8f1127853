#include "spec/describe.h"

namespace freetoken::spec {
namespace {

constexpr const char* kScorings[] = {"softmax",       "sigmoid",      "softmax_of_selected",
                                     "sqrt_softplus", "sparse_mixer", "joint_sigmoid"};
constexpr const char* kGroupScores[] = {"max", "top_two"};
constexpr const char* kRouterInputs[] = {"normed", "residual"};
constexpr const char* kSides[] = {"output", "input"};

}  // namespace

void describe(Fields& fields, MlpSpec& mlp) {
  Struct s(fields, mlp);
  s.integer("inner", &MlpSpec::inner, 1, kMaxHidden, Need::kRequired);
  s.object("activation", &MlpSpec::activation);
  s.flag("bias", &MlpSpec::bias);
  s.flag("scale", &MlpSpec::scale);
}

void describe(Fields& fields, MoeSpec& moe) {
  Struct s(fields, moe);
  s.integer("experts", &MoeSpec::experts, 1, kMaxExperts, Need::kRequired);
  s.integer("experts_per_token", &MoeSpec::experts_per_token, 1, kMaxExperts, Need::kRequired);
  s.integer("inner", &MoeSpec::inner, 1, kMaxHidden, Need::kRequired);
  s.choice("scoring", &MoeSpec::scoring, kScorings);
  s.flag("normalise", &MoeSpec::normalise);
  s.real("normalise_eps", &MoeSpec::normalise_eps, 0.0, 1.0);
  s.real("scaling", &MoeSpec::scaling, -kMaxFactor, kMaxFactor);
  s.flag("selection_bias", &MoeSpec::selection_bias);
  s.integer("groups", &MoeSpec::groups, 1, kMaxExperts);
  s.integer("groups_per_token", &MoeSpec::groups_per_token, 1, kMaxExperts);
  s.choice("group_score", &MoeSpec::group_score, kGroupScores);
  s.choice("router_input", &MoeSpec::router_input, kRouterInputs);
  s.object("router_norm", &MoeSpec::router_norm);
  s.flag("router_scale", &MoeSpec::router_scale);
  s.real("router_input_scale", &MoeSpec::router_input_scale, -kMaxFactor, kMaxFactor);
  s.flag("router_bias", &MoeSpec::router_bias);
  s.real("router_logit_scale", &MoeSpec::router_logit_scale, -kMaxFactor, kMaxFactor);
  s.real("router_softcap", &MoeSpec::router_softcap, 0.0, kMaxFactor);
  s.real("jitter", &MoeSpec::jitter, 0.0, 1.0);
  s.flag("hash", &MoeSpec::hash);
  s.integer("identity_experts", &MoeSpec::identity_experts, 0, kMaxExperts);
  s.choice("weighted_side", &MoeSpec::weighted_side, kSides);
  s.flag("expert_bias", &MoeSpec::expert_bias);
  s.flag("expert_scale", &MoeSpec::expert_scale);
  s.flag("global_scale", &MoeSpec::global_scale);
  s.object("activation", &MoeSpec::activation);
  s.integer("latent", &MoeSpec::latent, 0, kMaxHidden);
  s.object("latent_norm", &MoeSpec::latent_norm);
  s.object("expert_norm", &MoeSpec::expert_norm);
  s.integer("shared_inner", &MoeSpec::shared_inner, 0, kMaxHidden);
  s.integer("shared_experts", &MoeSpec::shared_experts, 1, kMaxExperts);
  s.flag("shared_routed", &MoeSpec::shared_routed);
  s.flag("shared_gate", &MoeSpec::shared_gate);
  s.object("shared_activation", &MoeSpec::shared_activation);
}

}  // namespace freetoken::spec
