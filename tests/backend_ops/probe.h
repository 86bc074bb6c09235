// Watches what this library computes in ggml's CPU back end.
#pragma once

#include <cstdint>

namespace backend_ops {

// Nodes that were offered to this library, by the kind of back end that asked.
struct ProbeCounts {
  int64_t computed;      // by it, for the tested back end
  int64_t left;          // to ggml after all, for the tested back end
  int64_t ref_computed;  // by it, for the reference: must not be
  int64_t ref_left;      // to ggml, for the reference
  int64_t ref_starved;   // of these, with a smaller work area than ggml asks for
};

// From now on every question of ggml's goes through the probe. Once, after the kernels are enabled.
void install_probe();

ProbeCounts probe_counts();

}  // namespace backend_ops
