#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace df2 {

struct ThreadCount {
  int32_t n;           // at least 1
  std::string reason;  // how it came about: "8 cores, of which 4 fast; CPU quota 2.0"
};

// How many threads this process should compute with: one per fast core it may run on, and no more than its CPU quota
// lets run. Hyper-threads share the vector units that inference saturates, and work that is handed out in equal parts
// waits for the slowest core.
ThreadCount default_threads();

// The same of a Linux system whose /proc and /sys are below `root` ("": this one). allowed: the CPUs of the process's
// affinity.
ThreadCount count_linux_threads(const std::string &root, const std::vector<int32_t> &allowed);

}  // namespace df2
