#pragma once

#include <cstdint>

namespace df2 {

// Tells whether two vocabularies name a token alike. index is the token's id, because llama.cpp renames empty entries
// after it.
uint32_t token_hash(const char *text, int32_t index);

}  // namespace df2
