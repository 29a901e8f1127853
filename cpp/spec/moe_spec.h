// Feed-forward networks: dense, and mixtures of experts with their routers.
#pragma once
#include "spec/common_spec.h"

namespace freetoken {

struct MlpSpec {
  int inner = 0;
  GatedActivation activation;
  bool bias = false;
  bool scale = false;  // the output is multiplied by the one value of weight scale
};

// kSparseMixer (top-2): each weight is the softmax over the scores within 2 * jitter (relative) of the best remaining one.
// kJointSigmoid: log-sigmoids of the chosen and of the shared experts, softmaxed together.
enum class RouterScoring { kSoftmax, kSigmoid, kSoftmaxOfSelected, kSqrtSoftplus, kSparseMixer, kJointSigmoid };
enum class GroupScore { kMax, kTopTwo };      // what ranks a group: its best expert, or the sum of its best two
enum class RouterInput { kNormed, kResidual };  // what the experts see, or the residual stream before the sublayer's norm
enum class WeightedSide { kOutput, kInput };  // the router's weight multiplies the expert's output, or its input

struct MoeSpec {
  int experts = 0;
  int experts_per_token = 0;
  int inner = 0;
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool normalise = false;   // selected weights divided by their sum
  float normalise_eps = 0.0f;  // added to that sum
  float scaling = 1.0f;
  bool selection_bias = false;
  int groups = 1;
  int groups_per_token = 1;
  GroupScore group_score = GroupScore::kTopTwo;
  RouterInput router_input = RouterInput::kNormed;
  NormSpec router_norm;     // of the router's input (weight router_norm)
  bool router_scale = false;  // the router's input is multiplied by weight router_scale [hidden]
  float router_input_scale = 1.0f;
  bool router_bias = false;
  float router_logit_scale = 1.0f;
  float router_softcap = 0.0f;
  float jitter = 0.0f;      // kSparseMixer
  bool hash = false;        // the experts of a token are row `token` of weight hash [vocab, experts_per_token]; weights are scored
  int identity_experts = 0;  // experts after the last that return their input (rows of the router, no weights)
  WeightedSide weighted_side = WeightedSide::kOutput;
  bool expert_bias = false;  // gate_bias, up_bias, down_bias of each expert
  bool expert_scale = false;  // a chosen expert's weight is multiplied by its value of weight expert_scale [experts]
  bool global_scale = false;  // all weights, the shared ones too, are multiplied by the one value of weight scale
  GatedActivation activation;
  int latent = 0;           // experts work on latent_in x [latent] and latent_out brings their sum back, 0 = none
  NormSpec latent_norm;     // of latent_in x
  NormSpec expert_norm;     // of each expert's output, before its weight
  int shared_inner = 0;     // 0 = no shared expert
  int shared_experts = 1;   // > 1: shared.E.*, each with a weight from its own row of the router
  bool shared_routed = false;
  bool shared_gate = false;  // the shared output is multiplied by sigmoid(shared_gate x)
  GatedActivation shared_activation;
};

}  // namespace freetoken
