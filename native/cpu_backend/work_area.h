// The work area that ggml gives the threads of a node: laid out in cache lines, which kernels ask for too.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace df2 {

constexpr size_t kLine = 64;

// A counter that threads claim work from. Set by one of them before a barrier.
using Counter = std::atomic<int64_t>;

inline int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// To whole lines.
inline size_t round_up(size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// ggml's own alignment is less than a line: ask for one line more.
inline uint8_t *align_up(void *pointer) {
  return reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<size_t>(pointer)));
}

}  // namespace df2
