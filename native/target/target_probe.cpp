// What the target's compute graph tells about it: where its head, its embeddings and its layer outputs are.
#include <algorithm>
#include <cstring>
#include <set>

#include "common/error.h"
#include "cpu_backend/packed_buffer.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#include "target/llama_internals.h"
#include "target/target.h"

namespace df2 {

namespace {

// Architectures whose graphs record layer inputs in llama.cpp 0c1e570; asking any other for them aborts the process.
constexpr const char *kRecordsLayerInputs[] = {
    "gemma4", "gpt-oss", "hunyuan_vl", "llama", "mimo2", "minimax-m2", "qwen3", "qwen3moe",
};

bool records_layer_inputs(const std::string &architecture) {
  return std::any_of(std::begin(kRecordsLayerInputs), std::end(kRecordsLayerInputs),
                     [&](const char *name) { return architecture == name; });
}

ggml_cgraph *probe_graph(llama_context *context) {
  const uint32_t n_tokens = std::min(llama_n_ubatch(context), llama_n_ctx_seq(context));
  ggml_cgraph *graph = llama_graph_reserve(context, n_tokens, 1, 1);
  if (graph == nullptr) {
    throw Error(DF2_ENOMEM, "llama.cpp cannot reserve the target's compute buffers");
  }
  return graph;
}

ggml_tensor *find_node(ggml_cgraph *graph, const std::string &name) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor *node = ggml_graph_node(graph, i);
    if (name == node->name) {
      return node;
    }
  }
  return nullptr;
}

// The head is the weight of the matmul behind the logits, past scales and soft caps.
ggml_tensor *find_head(ggml_cgraph *graph) {
  ggml_tensor *node = find_node(graph, "result_output");
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

bool on_cpu(const ggml_tensor *tensor) {
  if (tensor->buffer == nullptr) {
    return false;
  }
  if (ggml_backend_buffer_is_host(tensor->buffer)) {
    return true;
  }
  // repacked weights are not host-readable, yet the CPU back end computes with them
  ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
  return device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

}  // namespace

SharedWeights Target::shared_weights() {
  ggml_cgraph *graph = probe_graph(context_);
  const SharedWeights shared = {find_token_embd(graph, n_embd(), n_vocab()), find_head(graph)};
  if (shared.head == nullptr || shared.token_embd == nullptr) {
    throw Error(DF2_EUNSUPPORTED, format("cannot find the %s of architecture '%s' in its graph",
                                         shared.head == nullptr ? "head" : "token embeddings", architecture().c_str()));
  }
  if (shared.head->ne[0] != n_embd() || shared.head->ne[1] < n_vocab()) {
    throw Error(DF2_EUNSUPPORTED, "the target's head does not have a row of hidden size for every token");
  }
  if (!on_cpu(shared.head) || !on_cpu(shared.token_embd)) {
    throw Error(DF2_EUNSUPPORTED,
                "the target's head or embeddings are not in CPU memory; load it with n_gpu_layers = 0");
  }
  return shared;
}

void Target::leave_to_ggml() {
  ggml_cgraph *graph = probe_graph(context_);
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
  stock_buffers_ = std::make_unique<StockBuffers>(std::vector<ggml_backend_buffer_t>(buffers.begin(), buffers.end()));
}

bool Target::can_use_packed() {
  return packed_.packed == 0 || can_compute_packed(probe_graph(context_));
}

PackedBytes Target::packed_weights() {
  if (!knows_packed_) {
    ggml_cgraph *graph = probe_graph(context_);
    if (!can_compute_packed(graph)) {
      throw Error(DF2_EUNSUPPORTED, format("architecture '%s' uses its weights in a way the kernels do not know; set "
                                           "DFLASH2_KERNELS=off",
                                           architecture().c_str()));
    }
    std::set<ggml_backend_buffer_t> buffers;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
      const ggml_tensor *weights = ggml_graph_node(graph, i)->src[0];
      if (weights != nullptr && buffers.insert(weights->buffer).second) {
        const PackedBytes found = packed_bytes(weights->buffer);
        packed_.packed += found.packed;
        packed_.copied += found.copied;
      }
    }
    knows_packed_ = true;
  }
  return packed_;
}

void Target::select_taps(const std::vector<int32_t> &layers) {
  if (taps_ == nullptr) {
    if (!layers.empty() && !records_layer_inputs(architecture())) {
      throw Error(DF2_EUNSUPPORTED,
                  format("llama.cpp does not record layer inputs for '%s'; create the context with df2_taps_eval as "
                         "cb_eval, or open the target with df2_target_open",
                         architecture().c_str()));
    }
    // the state after the last layer is not the input of any
    if (std::count(layers.begin(), layers.end(), n_layer()) != 0) {
      throw Error(DF2_EUNSUPPORTED,
                  "this drafter reads the last layer's output, which needs a context created with "
                  "df2_taps_eval as cb_eval, or a target opened with df2_target_open");
    }
    for (const int32_t layer : tap_layers_) {
      llama_set_embeddings_layer_inp(context_, static_cast<uint32_t>(layer), false);
    }
    for (const int32_t layer : layers) {
      llama_set_embeddings_layer_inp(context_, static_cast<uint32_t>(layer), true);
    }
    tap_layers_ = layers;
    return;
  }
  if (!layers.empty()) {
    ggml_cgraph *graph = probe_graph(context_);
    for (const int32_t layer : layers) {
      const ggml_tensor *node = find_node(graph, format("l_out-%d", layer - 1));
      if (node == nullptr || node->ne[0] != n_embd() || node->type != GGML_TYPE_F32) {
        throw Error(DF2_EUNSUPPORTED, format("architecture '%s' does not show the output of layer %d",
                                             architecture().c_str(), layer - 1));
      }
    }
  }
  taps_->select(layers, n_embd());
  tap_layers_ = layers;
}

void Target::read_layer_inputs(float *features, int32_t n_tokens) {
  const int64_t n_embd = this->n_embd();
  const int64_t width = n_embd * static_cast<int64_t>(tap_layers_.size());
  for (size_t tap = 0; tap < tap_layers_.size(); ++tap) {
    const float *rows = llama_get_embeddings_layer_inp(context_, static_cast<uint32_t>(tap_layers_[tap]));
    for (int64_t i = 0; i < n_tokens; ++i) {
      std::memcpy(features + i * width + static_cast<int64_t>(tap) * n_embd, rows + i * n_embd,
                  static_cast<size_t>(n_embd) * sizeof(float));
    }
  }
}

}  // namespace df2
