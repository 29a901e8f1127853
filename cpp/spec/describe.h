// The JSON form of every struct of the ModelSpec, and the checks that no single field can make.
#pragma once
#include "core/status.h"
#include "spec/fields.h"
#include "spec/model_spec.h"

namespace freetoken::spec {

void describe(Fields& fields, NormSpec& norm);
void describe(Fields& fields, GatedActivation& activation);
void describe(Fields& fields, RopeTable& rope);
void describe(Fields& fields, AttentionSpec& attention);
void describe(Fields& fields, MlpSpec& mlp);
void describe(Fields& fields, MoeSpec& moe);
void describe(Fields& fields, SublayerSpec& sublayer);
void describe(Fields& fields, LayerSpec& layer);
void describe(Fields& fields, ModelSpec& model);

// Relations between fields: heads that divide, indices in range, a rotation that fits its head.
Status check(const ModelSpec& model);

}  // namespace freetoken::spec
