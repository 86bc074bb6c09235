#include "target/target_graph.h"

#include <algorithm>
#include <set>

#include "common/error.h"
#include "cpu_backend/packed_buffer.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#include "target/llama_internals.h"

namespace df2 {

namespace {

// The head is the weight of the matmul behind the logits, past scales and soft caps.
ggml_tensor *find_head(ggml_cgraph *graph) {
  const std::vector<ggml_tensor *> outputs = find_nodes(graph, "result_output");
  ggml_tensor *node = outputs.empty() ? nullptr : outputs[0];
  for (int depth = 0; node != nullptr && depth < 16; ++depth, node = node->src[0]) {
    if (node->op == GGML_OP_MUL_MAT) {
      return node->src[0];
    }
    if (node->op == GGML_OP_ADD || node->op == GGML_OP_MUL) {
      return nullptr;  // a head with a bias or scales of its own is not just this matrix
    }
  }
  return nullptr;
}

ggml_tensor *find_token_embd(ggml_cgraph *graph, int64_t n_embd, int64_t n_vocab) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    if (node->op == GGML_OP_GET_ROWS && node->src[0]->ne[0] == n_embd && node->src[0]->ne[1] >= n_vocab &&
        node->src[1]->type == GGML_TYPE_I32) {
      return node->src[0];
    }
  }
  return nullptr;
}

bool is_on_cpu(ggml_backend_buffer_t buffer) {
  if (buffer == nullptr) {
    return false;
  }
  if (ggml_backend_buffer_is_host(buffer)) {
    return true;
  }
  // repacked weights are not host-readable, yet the CPU back end computes with them
  ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer));
  return device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// The buffers of weights and caches.
std::vector<ggml_backend_buffer_t> stored_buffers(ggml_cgraph *graph) {
  std::set<ggml_backend_buffer_t> buffers;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    for (const ggml_tensor *operand : ggml_graph_node(graph, i)->src) {
      const bool is_stored = operand != nullptr && operand->buffer != nullptr &&
                             ggml_backend_buffer_get_usage(operand->buffer) != GGML_BACKEND_BUFFER_USAGE_COMPUTE;
      if (is_stored) {
        buffers.insert(operand->buffer);
      }
    }
  }
  return {buffers.begin(), buffers.end()};
}

}  // namespace

ProbedGraph probe_graph(llama_context *context) {
  // where each sequence has a cache of its own, the graph is cut into as many parts, which must be equal
  const uint32_t n_seq = llama_n_seq_max(context);
  const uint32_t n_most = std::min(llama_n_ubatch(context), llama_n_ctx_seq(context));
  const uint32_t n_tokens = std::max(n_seq, n_most / n_seq * n_seq);
  ggml_cgraph *graph = llama_graph_reserve(context, n_tokens, 1, 1);
  if (graph == nullptr) {
    throw Error(DF2_ENOMEM, "llama.cpp cannot reserve the target's compute buffers");
  }
  return {graph, static_cast<int32_t>(n_tokens)};
}

std::vector<ggml_tensor *> find_nodes(ggml_cgraph *graph, const std::string &name) {
  std::vector<ggml_tensor *> found;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor *node = ggml_graph_node(graph, i);
    if (name == node->name) {
      found.push_back(node);
    }
  }
  return found;
}

SharedWeights find_shared_weights(ggml_cgraph *graph, int64_t n_embd, int64_t n_vocab,
                                  const std::string &architecture) {
  const SharedWeights shared = {find_token_embd(graph, n_embd, n_vocab), find_head(graph)};
  if (shared.head == nullptr || shared.token_embd == nullptr) {
    throw Error(DF2_EUNSUPPORTED, format("cannot find the %s of architecture '%s' in its graph",
                                         shared.head == nullptr ? "head" : "token embeddings", architecture.c_str()));
  }
  if (shared.head->ne[0] != n_embd || shared.head->ne[1] < n_vocab) {
    throw Error(DF2_EUNSUPPORTED, "the target's head does not have a row of hidden size for every token");
  }
  if (!is_on_cpu(shared.head->buffer) || !is_on_cpu(shared.token_embd->buffer)) {
    throw Error(DF2_EUNSUPPORTED,
                "the target's head or embeddings are not in CPU memory; load it with n_gpu_layers = 0");
  }
  return shared;
}

bool is_all_on_cpu(ggml_cgraph *graph) {
  const std::vector<ggml_backend_buffer_t> buffers = stored_buffers(graph);
  return std::all_of(buffers.begin(), buffers.end(), is_on_cpu);
}

PackedBytes packed_weights(ggml_cgraph *graph) {
  PackedBytes packed;
  for (const ggml_backend_buffer_t buffer : stored_buffers(graph)) {
    const PackedBytes found = packed_bytes(buffer);
    packed.packed += found.packed;
    packed.copied += found.copied;
  }
  return packed;
}

}  // namespace df2
