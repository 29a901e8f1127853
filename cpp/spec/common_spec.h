// Pieces that several sublayers share: norms, activations, rotations.
#pragma once
#include <vector>

namespace freetoken {

enum class NormKind { kNone, kRms, kLayer };
struct NormSpec {
  NormKind kind = NormKind::kNone;
  bool plus_one = false;      // the weight is stored as w - 1
  bool has_weight = true;
  bool has_bias = false;
  float eps = 1e-6f;
  int group = 0;              // normalise each run of this many elements on its own, 0 = all together
  bool weight_first = false;  // the weight multiplies the input, then the norm is taken
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu2, kSwigluOai };
struct GatedActivation {
  Activation kind = Activation::kSilu;
  float alpha = 1.0f;        // kSwigluOai: x * sigmoid(alpha x)
  float limit = 0.0f;        // gate to at most it, up to within +-it, 0 = none
  float up_offset = 0.0f;    // kSwigluOai: (up + 1)
  bool limit_after = false;  // the gate is limited after its activation instead of before
  bool gated = true;         // false: there is no gate matrix, up is activated
};

// Inverse frequencies are computed by the family parser (fp32, as the reference does), so every scaling scheme
// (llama3, yarn, linear, proportional) is one list here.
struct RopeTable {
  std::vector<float> inv_freq;    // rotary_dim / 2 values
  float attention_factor = 1.0f;  // multiplies cos and sin
  bool interleaved = false;       // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  int offset = 0;                 // first rotated element of a head
  bool learned = false;           // inv_freq is multiplied by exp(weight rope.I.alpha)
};

}  // namespace freetoken
