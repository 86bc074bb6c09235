#include "common/token_hash.h"

#include <string>

#include "common/error.h"

namespace df2 {

uint32_t token_hash(const char *text, int32_t index) {
  const std::string empty = *text == '\0' ? format("[EMPTY_%d]", index) : std::string();
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char *c = *text == '\0' ? empty.c_str() : text; *c != '\0'; ++c) {
    hash = (hash ^ static_cast<uint8_t>(*c)) * 16777619u;
  }
  return hash;
}

}  // namespace df2
