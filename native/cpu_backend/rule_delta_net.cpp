// GATED_DELTA_NET by ops/delta_net, in ggml's threads; and, where inputs are kept, what llama.cpp does with states
// before and after it.
#include <algorithm>
#include <cstring>

#include "cpu_backend/delta_node.h"
#include "cpu_backend/kept_inputs.h"
#include "cpu_backend/kernel_table.h"
#include "cpu_backend/own_rows.h"
#include "cpu_backend/rule.h"

namespace df2 {

namespace {

// One thread's rows of all states: outputs, and the node's planes.
void compute_alone(const DeltaNode &node, const ggml_compute_params &params) {
  const df2_delta_net_kernel &kernel = *kernels_in_use().delta_net;
  const DeltaWork work(node.params.size, node.n_tokens, params);
  const int64_t n_written = std::min(node.n_tokens, node.n_planes);
  const auto n_first = static_cast<int32_t>(node.n_tokens - n_written + 1);
  const int64_t n_states = node.n_heads * node.n_sequences;
  for_own_rows(n_states, node.params.size, params, [&](int64_t index, int32_t first_row, int32_t end_row) {
    const int64_t head = index % node.n_heads;
    const int64_t sequence = index / node.n_heads;
    df2_delta_token *tokens = work.tokens();
    for (int64_t i = 0; i < node.n_tokens; ++i) {
      tokens[i] = node.token(i, head, sequence);
    }
    float *state = node.plane(n_written - 1, head, sequence);
    kernel.run(state, node.state(head, sequence), &node.params, tokens, n_first, n_first, first_row, end_row,
               work.workspace());
    for (int64_t plane = n_written - 2; plane >= 0; --plane) {
      const float *before = state;
      state = node.plane(plane, head, sequence);
      kernel.run(state, before, &node.params, tokens + node.n_tokens - 1 - plane, 1, 1, first_row, end_row,
                 work.workspace());
    }
  });
}

int32_t asked_row(const ggml_tensor *rows, int64_t at) {
  return static_cast<const int32_t *>(rows->src[1]->data)[at];
}

// Where a graph is cut behind this node, its layer may be found to be deferred only afterwards.
void look_up(KeptLayer *layer, ggml_tensor *op) {
  const int64_t n_rows = layer->is_deferred() ? 0 : op->ne[1];
  for (int64_t i = 0; i < n_rows; ++i) {
    std::memcpy(static_cast<float *>(op->data) + i * op->ne[0], layer->native_row(asked_row(op, i)),
                static_cast<size_t>(op->ne[0]) * sizeof(float));
  }
  layer->begin_update(asked_row(op, 0));
}

class DeltaNetRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    const KeptInputs *inputs = current_kept_inputs();
    switch (op->op) {
      case GGML_OP_GATED_DELTA_NET:
        return kernels_in_use().delta_net != nullptr && DeltaNode::is_known(op);
      case GGML_OP_GET_ROWS:
        return inputs != nullptr && !ggml_is_empty(op) && inputs->layer_of(op->src[0]) != nullptr;
      case GGML_OP_CPY:
        return inputs != nullptr && !ggml_is_empty(op) && inputs->layer_of(op) != nullptr;
      default:
        return false;
    }
  }

  const Claim *claim(ggml_tensor *op) const override {
    KeptInputs *inputs = current_kept_inputs();
    const Claim *kept = inputs != nullptr ? inputs->claim(op) : nullptr;
    return kept != nullptr || op->op != GGML_OP_GATED_DELTA_NET ? kept : &alone_;
  }

  size_t work_bytes(int n_threads, const ggml_tensor *op) const override {
    if (op->op != GGML_OP_GATED_DELTA_NET) {
      return 0;
    }
    const DeltaNode node(op);
    return DeltaWork::bytes(node.params.size, node.n_planes + node.n_tokens, n_threads);
  }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    KeptLayer *layer = static_cast<const KeptClaim *>(static_cast<const Claim *>(op->extra))->layer;
    if (op->op == GGML_OP_GATED_DELTA_NET) {
      compute_update(params, layer, op);
    } else if (params.ith == 0 && op->op == GGML_OP_GET_ROWS) {
      look_up(layer, op);
    } else if (params.ith == 0) {
      layer->end_update();
    }
  }

 private:
  static void compute_update(const ggml_compute_params &params, KeptLayer *layer, const ggml_tensor *op) {
    if (layer == nullptr || !layer->is_deferred()) {
      compute_alone(DeltaNode(op), params);
    } else {
      layer->update(DeltaNode(op), params);
    }
    if (layer != nullptr && params.ith == 0) {
      layer->note_update();
    }
  }

  const KeptClaim alone_ = {{Claim::kMagic, this}, nullptr};
};

}  // namespace

const Rule &rules::delta_net() {
  static const auto *rule = new DeltaNetRule();
  return *rule;
}

}  // namespace df2
