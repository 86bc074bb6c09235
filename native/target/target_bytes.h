// How much memory a target takes, and what for.
#pragma once

#include <cstdint>

struct ggml_cgraph;
struct llama_context;

namespace df2 {

struct TargetBytes {
  uint64_t mapped = 0;     // weights read where the file is mapped: pages that the system may drop and read again
  uint64_t packed = 0;     // weights packed for the kernels
  uint64_t copied = 0;     // weights in other memory
  uint64_t attention = 0;  // caches of the whole context
  uint64_t window = 0;     // caches of sliding windows
  uint64_t state = 0;      // recurrent state
  uint64_t rewind = 0;     // copies of it, to go back to
  uint64_t compute = 0;    // buffers of the graph
  uint64_t work = 0;       // what the threads that compute it share

  // What stays in memory.
  uint64_t total() const { return packed + copied + attention + window + state + rewind + compute + work; }
};

// graph: probed of the context. can_map: whether the model file's mapping is in use. rewind is part of state here.
TargetBytes bytes_of(const llama_context *context, ggml_cgraph *graph, bool can_map);

}  // namespace df2
