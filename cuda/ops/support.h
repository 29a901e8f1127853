// What this backend has kernels for. Everything else is refused by name before anything is served.
#pragma once
#include "core/status.h"
#include "ops/device_entry.h"
#include "ops/kv_group.h"
#include "ops/ops.h"

namespace freetoken::cuda {

Status check_options(const DeviceOptions& options);
// A tensor that is loaded; a router by its name, as it is multiplied in fp32.
Status check_tensor(const PackedTensorInfo& info);
Status check_expert(const std::string& name, const ExpertLayout& layout);
Status check_spec(const ModelSpec& spec);
Status check_kv_group(const KvGroup& group);

Status check_norm(const NormSpec& norm);
Status check_activation(const GatedActivation& activation);
Status check_attention(const AttentionSpec& attention);
Status check_moe(const MoeSpec& moe);

}  // namespace freetoken::cuda
