#include "ref_ops/options.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace freetoken::ref {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*end) throw std::invalid_argument(std::string(variable) + "=" + text + " is not a number");
  return value;
}

}  // namespace

RefOptions options_from_environment(IsaLevel isa_otherwise) {
  RefOptions options;
  options.isa = isa_otherwise;
  options.seed = number_from("FREETOKEN_REF_SEED", options.seed);
  options.max_delay_us = int(number_from("FREETOKEN_REF_DELAY_US", uint64_t(options.max_delay_us)));
  const char* isa = std::getenv("FREETOKEN_REF_ISA");
  if (!isa || !*isa) return options;
  const std::string wanted = isa;
  for (const IsaLevel level : supported_isa_levels())
    if (wanted == isa_name(level)) {
      options.isa = level;
      return options;
    }
  throw std::invalid_argument("FREETOKEN_REF_ISA=" + wanted + " is no level of this CPU");
}

}  // namespace freetoken::ref
