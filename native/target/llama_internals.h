// What this project uses of llama.cpp beyond its public header: exported with C++ linkage, declared in a header that is
// not installed. Checked against llama.cpp 0c1e570 (llama-cpp-python 0.3.36).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "ggml-backend.h"

struct ggml_cgraph;
struct llama_context;

// Builds the graph of a decode without computing it. Valid until the context's next decode.
ggml_cgraph *llama_graph_reserve(llama_context *ctx, uint32_t n_tokens, uint32_t n_seqs, uint32_t n_outputs);

// Bytes in buffers of one type.
struct llama_memory_breakdown_data {
  size_t model;    // weights
  size_t context;  // caches and states
  size_t compute;
};

// What a context and its model have allocated, or would have, if the model was loaded with no_alloc.
std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data> llama_get_memory_breakdown(const llama_context *ctx);

// Keeps, from the next decode on, the hidden states entering layer `lid`. Aborts at the next decode if the architecture
// does not record them.
void llama_set_embeddings_layer_inp(llama_context *ctx, uint32_t lid, bool value);

// [n_tokens of the last decode][n_embd]; aborts if not kept.
float *llama_get_embeddings_layer_inp(llama_context *ctx, uint32_t lid);
