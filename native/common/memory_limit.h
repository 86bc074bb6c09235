// How much memory there is for this process.
#pragma once

#include <cstdint>
#include <string>

namespace df2 {

// Bytes that can be put into memory before something must be thrown out of it or ended: what the system says is
// available, and what the limits of the process's control groups leave. Files that are only cached count as free,
// swap space does not. UINT64_MAX where there is nothing that says so. root: where /proc and /sys are, for tests.
uint64_t available_memory(const std::string &root = "");

}  // namespace df2
