// One gated feed-forward network on a device and as the oracles take it.
#pragma once
#include <random>

#include "ops/ops_case.h"

namespace freetoken::testing {

struct MlpCase {
  WeightFormat gate, up, down;
  int inner;
  bool bias;
};

struct MlpOnDevice {
  TinyWeights weights;
  FeedForward plain;
  MlpArgs args;

  // hidden: inputs and outputs of the network.
  MlpOnDevice(Ops& ops, const MlpCase& c, int hidden, std::mt19937& rng)
      : weights(random(c, hidden, rng)), plain{weights.at("m.gate"), weights.at("m.up"), weights.at("m.down")} {
    weights.fill(ops);
    args.gate_up = ops.weight(c.gate == c.up ? "m.gate_up" : "m.gate");
    args.up = ops.weight("m.up");
    EXPECT_EQ(args.up.valid(), c.gate != c.up);
    args.down = ops.weight("m.down");
    args.inner = c.inner;
    if (!c.bias) return;
    args.gate_bias = ops.vector("m.gate_bias"), args.up_bias = ops.vector("m.up_bias"), args.down_bias = ops.vector("m.down_bias");
    plain.gate_bias = &weights.at("m.gate_bias"), plain.up_bias = &weights.at("m.up_bias"), plain.down_bias = &weights.at("m.down_bias");
  }

 private:
  static TinyWeights random(const MlpCase& c, int hidden, std::mt19937& rng) {
    TinyWeights all;
    all.add("m.gate", random_matrix(c.gate, c.inner, hidden, rng));
    all.add("m.up", random_matrix(c.up, c.inner, hidden, rng));
    all.add("m.down", random_matrix(c.down, hidden, c.inner, rng));
    for (const char* name : {"m.gate_bias", "m.up_bias"}) all.add(name, random_vector(c.inner, 0, 0.5f, rng));
    all.add("m.down_bias", random_vector(hidden, 0, 0.5f, rng));
    return all;
  }
};

}  // namespace freetoken::testing
