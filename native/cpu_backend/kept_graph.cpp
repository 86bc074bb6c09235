// Which states of a graph can be kept as inputs: those that are looked up in a cache, updated by a delta net, and
// copied back, with no other reader or writer.
#include <cstring>
#include <iterator>
#include <map>

#include "cpu_backend/kept_inputs.h"
#include "cpu_backend/kernel_table.h"

namespace df2 {

namespace {

// llama.cpp's name for what its layers keep beside the inputs of convolutions.
constexpr char kStatePrefix[] = "cache_s_l";

const ggml_tensor *root_of(const ggml_tensor *tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

bool is_state_cache(const ggml_tensor *tensor) {
  return std::strncmp(tensor->name, kStatePrefix, sizeof(kStatePrefix) - 1) == 0;
}

// Node by node, in the order they are computed.
class StateReaders {
 public:
  // False: a state is used in a way that is not known.
  bool add(const ggml_tensor *node) {
    if (is_view(node->op) || ggml_is_empty(node)) {
      return true;
    }
    bool is_known = true;
    for (const ggml_tensor *source : node->src) {
      if (source != nullptr) {
        const ggml_tensor *root = root_of(source);
        is_known = is_known && (!is_state_cache(root) || may_use_cache(node, root)) &&
                   (looked_up.count(root) == 0 || may_read_rows(node, root)) &&
                   (updates.count(root) == 0 || may_read_update(node, source));
      }
    }
    return is_known && (node->op != GGML_OP_GATED_DELTA_NET || updates.count(node) != 0);
  }

  struct Update {
    const ggml_tensor *cache;
    bool is_stored;
  };
  std::map<const ggml_tensor *, const ggml_tensor *> looked_up;  // rows: their cache
  std::map<const ggml_tensor *, Update> updates;

 private:
  static bool is_view(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
  }

  // Looked up, cleared in place for a new sequence, or written to.
  bool may_use_cache(const ggml_tensor *node, const ggml_tensor *cache) {
    if (node->op == GGML_OP_GET_ROWS && node->src[1]->type == GGML_TYPE_I32) {
      looked_up[node] = cache;
      return true;
    }
    return root_of(node) == cache && (node->op == GGML_OP_SCALE || node->op == GGML_OP_CPY);
  }

  // By a delta net, as its state; or copied within the cache, which sequences do that share a state.
  bool may_read_rows(const ggml_tensor *node, const ggml_tensor *rows) {
    const ggml_tensor *cache = looked_up[rows];
    if (node->op == GGML_OP_GATED_DELTA_NET && root_of(node->src[5]) == rows && DeltaNode::is_known(node)) {
      updates[node] = {cache, false};
      return has_room(DeltaNode(node), cache);
    }
    return node->op == GGML_OP_CPY && root_of(node) == cache;
  }

  static bool has_room(const DeltaNode &node, const ggml_tensor *cache) {
    return node.n_planes > 1 && node.n_sequences == 1 && cache->type == GGML_TYPE_F32 && ggml_is_contiguous(cache) &&
           cache->ne[0] == node.state_floats() && cache->ne[1] % node.n_planes == 0;
  }

  // Its states are copied to where the state before them was looked up.
  bool may_read_update(const ggml_tensor *node, const ggml_tensor *source) {
    Update &update = updates[root_of(source)];
    const size_t output_bytes = DeltaNode(root_of(source)).output_bytes();
    if (node->op == GGML_OP_CPY && root_of(node) == update.cache && source->view_offs == output_bytes) {
      update.is_stored = true;
      return true;
    }
    return source->view_src != nullptr && source->view_offs + ggml_nbytes(source) <= output_bytes;
  }
};

}  // namespace

std::unique_ptr<KeptInputs> KeptInputs::find(ggml_cgraph *graph) {
  StateReaders readers;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    if (!readers.add(ggml_graph_node(graph, i))) {
      return nullptr;
    }
  }
  if (readers.updates.empty() || kernels_in_use().delta_net == nullptr) {
    return nullptr;
  }
  auto inputs = std::make_unique<KeptInputs>();
  for (const auto &[node, update] : readers.updates) {
    if (!update.is_stored || inputs->layer_of(update.cache) != nullptr) {
      return nullptr;
    }
    inputs->layers_.push_back(std::make_unique<KeptLayer>(update.cache, DeltaNode(node)));
  }
  for (const auto &[rows, cache] : readers.looked_up) {
    if (inputs->layer_of(cache) == nullptr) {
      return nullptr;
    }
  }
  return inputs;
}

}  // namespace df2
