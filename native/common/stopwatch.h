#pragma once

#include <chrono>
#include <cstdint>

namespace df2 {

// Adds the wall time of its scope, in microseconds, to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(uint64_t *total_us) : total_us_(total_us), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { *total_us_ += elapsed_us(); }
  Stopwatch(const Stopwatch &) = delete;
  Stopwatch &operator=(const Stopwatch &) = delete;

  uint64_t elapsed_us() const {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start_).count());
  }

 private:
  uint64_t *total_us_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace df2
