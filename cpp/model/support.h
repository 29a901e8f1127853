// Which ModelSpecs the forward pass runs.
#pragma once
#include "core/status.h"
#include "spec/model_spec.h"

namespace freetoken {

// kUnsupported naming the first feature (and its layer) that this version has no operation for.
Status check_model_supported(const ModelSpec& spec);

}  // namespace freetoken
