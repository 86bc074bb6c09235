// How much memory packed weights take.
#pragma once

#include <cstdint>

namespace df2 {

struct PackedBytes {
  uint64_t packed = 0;
  uint64_t copied = 0;  // how much of that llama.cpp has in memory a second time, to look up rows
};

}  // namespace df2
