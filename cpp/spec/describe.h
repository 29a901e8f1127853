// The JSON form of every struct of the ModelSpec, and the checks that no single field can make.
#pragma once
#include "core/status.h"
#include "spec/fields.h"
#include "spec/model_spec.h"

namespace freetoken::spec {

// describe_common.cc
void describe(Fields& fields, NormSpec& norm);
void describe(Fields& fields, GatedActivation& activation);
void describe(Fields& fields, RopeTable& rope);
// describe_attention.cc
void describe(Fields& fields, TemperatureSpec& temperature);
void describe(Fields& fields, MlaSpec& mla);
void describe(Fields& fields, CompressorSpec& compressor);
void describe(Fields& fields, IndexerSpec& indexer);
void describe(Fields& fields, RelativeBiasSpec& bias);
void describe(Fields& fields, AttentionSpec& attention);
void describe(Fields& fields, LinearAttentionSpec& linear);
// describe_moe.cc
void describe(Fields& fields, MlpSpec& mlp);
void describe(Fields& fields, MoeSpec& moe);
// describe_model.cc
void describe(Fields& fields, TableMemorySpec& memory);
void describe(Fields& fields, SublayerSpec& sublayer);
void describe(Fields& fields, LayerSpec& layer);
void describe(Fields& fields, HyperSpec& hyper);
void describe(Fields& fields, TableSpec& table);
void describe(Fields& fields, MtpSpec& mtp);
void describe(Fields& fields, ModelSpec& model);

// Relations between fields: heads that divide, indices in range, a rotation that fits its head.
Status check(const ModelSpec& model);

}  // namespace freetoken::spec
