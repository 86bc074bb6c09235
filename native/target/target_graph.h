// What the target's compute graph tells about it: where its head, its embeddings and its layer outputs are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/shared_weights.h"
#include "cpu_backend/packed_bytes.h"

struct ggml_cgraph;
struct llama_context;

namespace df2 {

// The graph of a decode that is never computed. Valid until the context's next decode or probe.
struct ProbedGraph {
  ggml_cgraph *graph;
  int32_t n_tokens;  // of one sequence; the last one asks for logits
};

// Throws DF2_ENOMEM; DF2_EUNSUPPORTED where llama.cpp would end the process.
ProbedGraph probe_graph(llama_context *context);

// All nodes of that name, in the order they are computed.
std::vector<ggml_tensor *> find_nodes(ggml_cgraph *graph, const std::string &name);

// Embeddings and head of a target. Throws DF2_EUNSUPPORTED if they cannot be found or used by other graphs.
SharedWeights find_shared_weights(ggml_cgraph *graph, int64_t n_embd, int64_t n_vocab, const std::string &architecture);

// Whether a rotary embedding (RoPE) is one that ends the process when it is computed.
bool has_bad_rotation(ggml_cgraph *graph);

// Whether the CPU back end computes with all weights and caches.
bool is_all_on_cpu(ggml_cgraph *graph);

// How much of the weights is packed.
PackedBytes packed_weights(ggml_cgraph *graph);

// The name of a buffer with weights that could be packed, but are not; "" if there are none.
std::string unpacked_buffer(ggml_cgraph *graph);

}  // namespace df2
