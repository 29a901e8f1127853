// Checks of a request before it is queued.
#pragma once
#include "core/status.h"
#include "freetoken/request.h"

namespace freetoken {

struct RequestLimits {
  int vocab = 0;                // ids a prompt may hold: [0, vocab)
  int max_sequence_tokens = 0;  // prompt + completion
};

// kInvalidArgument naming the field, the value and the bound.
Status validate_request(const Request& request, const RequestLimits& limits);

}  // namespace freetoken
