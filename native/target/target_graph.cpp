#include "target/target_graph.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "common/error.h"
#include "common/load_guard.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/packed_weights.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#include "target/llama_internals.h"

namespace df2 {

namespace {

// Whether a node adds an adapter's (LoRA's) share to what comes from a weight: s B A x, to a product or to looked up
// rows. Drafts are made with the weight alone: they need to be likely, and verifying makes them right.
bool adds_adapter(const ggml_tensor *node) {
  const ggml_tensor *share = node->op == GGML_OP_ADD ? node->src[1] : nullptr;
  if (share == nullptr || share->op != GGML_OP_SCALE || share->src[0]->op != GGML_OP_MUL_MAT) {
    return false;
  }
  const ggml_op inner = share->src[0]->src[1]->op;
  return inner == GGML_OP_MUL_MAT || inner == GGML_OP_GET_ROWS;
}

// Whether a node adds the same stored vector to every row.
bool adds_bias(const ggml_tensor *node) {
  const ggml_tensor *bias = node->op == GGML_OP_ADD ? node->src[1] : nullptr;
  return bias != nullptr && bias->op == GGML_OP_NONE && bias->type == GGML_TYPE_F32 && bias->ne[0] == node->ne[0] &&
         ggml_nrows(bias) == 1;
}

// What comes last in a graph, unless its name says otherwise: plamo3 gives its logits none.
ggml_tensor *find_logits(ggml_cgraph *graph) {
  const std::vector<ggml_tensor *> outputs = find_nodes(graph, "result_output");
  return outputs.empty() ? ggml_graph_node(graph, -1) : outputs[0];
}

// The head is the weight of the matmul behind the logits, past scales, soft caps and adapters, and what is added to it.
void find_head(ggml_tensor *logits, SharedWeights *shared) {
  constexpr int kMaxDepth = 16;
  ggml_tensor *node = logits;
  for (int depth = 0; node != nullptr && depth < kMaxDepth; node = node->src[0]) {
    if (adds_adapter(node)) {
      continue;
    }
    if (node->op == GGML_OP_MUL_MAT) {
      shared->head = node->src[0];
      return;
    }
    if (adds_bias(node) && shared->head_bias == nullptr && !shared->changes_logits) {
      shared->head_bias = node->src[1];
      continue;
    }
    if (node->op == GGML_OP_ADD || node->op == GGML_OP_MUL) {
      return;  // a head with scales of its own is not just this matrix
    }
    ++depth;
    shared->changes_logits = shared->changes_logits || node->op == GGML_OP_SCALE || node->op == GGML_OP_UNARY;
  }
}

// The row look-up of the target's own embeddings; null if there is none.
const ggml_tensor *find_look_up(ggml_cgraph *graph, int64_t n_embd, int64_t n_vocab) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    if (node->op == GGML_OP_GET_ROWS && node->src[0]->ne[0] == n_embd && node->src[0]->ne[1] >= n_vocab &&
        node->src[1]->type == GGML_TYPE_I32) {
      return node;
    }
  }
  return nullptr;
}

std::vector<const ggml_tensor *> readers_of(ggml_cgraph *graph, const ggml_tensor *tensor) {
  std::vector<const ggml_tensor *> readers;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    if (std::count(std::begin(node->src), std::end(node->src), tensor) != 0) {
      readers.push_back(node);
    }
  }
  return readers;
}

// What all readers of the looked up rows see them multiplied with.
float find_embedding_scale(ggml_cgraph *graph, const ggml_tensor *rows) {
  std::vector<const ggml_tensor *> readers = readers_of(graph, rows);
  while (readers.size() == 1 && adds_adapter(readers[0])) {
    readers = readers_of(graph, readers[0]);
  }
  if (readers.size() != 1 || readers[0]->op != GGML_OP_SCALE) {
    return 1.0f;
  }
  float scale = 1.0f;
  std::memcpy(&scale, readers[0]->op_params, sizeof(scale));
  return scale;
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
  const LoadGuard guard;
  ggml_cgraph *graph = nullptr;
  try {
    graph = llama_graph_reserve(context, n_tokens, 1, 1);
  } catch (const std::exception &) {
    if (guard.message().empty()) {
      throw;
    }
    throw Error(DF2_EUNSUPPORTED,
                format("llama.cpp cannot build this context's graph (%s); if an adapter (LoRA) is set, take it off: of "
                       "embeddings that are also the head llama.cpp takes none",
                       guard.message().c_str()));
  }
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
  SharedWeights shared = {nullptr, nullptr, nullptr, 1.0f, false};
  ggml_tensor *logits = find_logits(graph);
  find_head(logits, &shared);
  if (const ggml_tensor *rows = find_look_up(graph, n_embd, n_vocab)) {
    shared.token_embd = rows->src[0];
    shared.embedding_scale = find_embedding_scale(graph, rows);
  }
  if (shared.head == nullptr || shared.token_embd == nullptr) {
    throw Error(DF2_EUNSUPPORTED, format("cannot find the %s of architecture '%s' in its graph",
                                         shared.head == nullptr ? "head" : "token embeddings", architecture.c_str()));
  }
  // cogvlm: llama.cpp would give the logits of a prompt's first row as those of its last
  if (logits->ne[1] != 1) {
    throw Error(DF2_EUNSUPPORTED,
                format("llama.cpp mixes up the logits of architecture '%s' after more than one token: "
                       "its graph computes those of every row, whichever are asked for",
                       architecture.c_str()));
  }
  if (shared.head->ne[0] != n_embd || shared.head->ne[1] < n_vocab) {
    throw Error(DF2_EUNSUPPORTED, "the target's head does not have a row of hidden size for every token");
  }
  const bool is_bias_on_cpu = shared.head_bias == nullptr || is_on_cpu(shared.head_bias->buffer);
  if (!is_on_cpu(shared.head->buffer) || !is_bias_on_cpu || !is_on_cpu(shared.token_embd->buffer)) {
    throw Error(DF2_EUNSUPPORTED,
                "the target's head or embeddings are not in CPU memory; load it with n_gpu_layers = 0");
  }
  return shared;
}

bool has_bad_rotation(ggml_cgraph *graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    const int32_t n_dims = node->op_params[1];
    if (node->op == GGML_OP_ROPE && (n_dims % 2 != 0 || n_dims < 0 || n_dims > node->src[0]->ne[0])) {
      return true;
    }
  }
  return false;
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

std::string unpacked_buffer(ggml_cgraph *graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *weights = ggml_graph_node(graph, i)->src[0];
    const bool is_stored = weights != nullptr && weights->buffer != nullptr &&
                           ggml_backend_buffer_get_usage(weights->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    if (is_stored && can_multiply(ggml_graph_node(graph, i)) && !is_packed(weights)) {
      return ggml_backend_buffer_name(weights->buffer);
    }
  }
  return "";
}

}  // namespace df2
