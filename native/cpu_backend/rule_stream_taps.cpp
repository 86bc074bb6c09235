// Hidden states that are the mean of a token's residual streams. The operation that computes the streams (glm5-next:
// DSV4_HC_POST) is ggml's, and how a compiler rounds its products and sums is not known here. So it is left alone, and
// the first operation that reads the streams is watched: the norm of the next layer, or after the last one the choice
// of rows that ask for logits.
#include <algorithm>

#include "cpu_backend/node.h"
#include "cpu_backend/rule_taps.h"
#include "ggml-backend.h"
#include "ops/common/split.h"

namespace df2 {

namespace {

// The streams that a node reads as one long row per token; null: none.
const ggml_tensor *streams_of(const ggml_tensor *op) {
  const bool is_reader = op->op == GGML_OP_RMS_NORM || op->op == GGML_OP_GET_ROWS;
  return is_reader && op->src[0]->op == GGML_OP_RESHAPE ? op->src[0]->src[0] : nullptr;
}

// ggml computes a norm together with the product behind it, and does not ask about either.
bool may_be_fused(ggml_cgraph *graph, int i) {
  const bool is_last = i + 1 == ggml_graph_n_nodes(graph);
  return ggml_graph_node(graph, i)->op == GGML_OP_RMS_NORM && !is_last &&
         ggml_graph_node(graph, i + 1)->op == GGML_OP_MUL;
}

class StreamTapRule final : public Rule {
 public:
  bool matches(const ggml_tensor *op) const override {
    const TapRecorder *recorder = current_tap_recorder();
    const ggml_tensor *streams = recorder != nullptr ? streams_of(op) : nullptr;
    return streams != nullptr && recorder->form() == TapForm::kStreamMean && recorder->wants(streams) &&
           streams->buffer != nullptr && ggml_backend_buffer_is_host(streams->buffer);
  }

  const Claim *claim(ggml_tensor *op) const override { return current_tap_recorder()->mark(streams_of(op), this); }

  size_t work_bytes(int /*n_threads*/, const ggml_tensor * /*op*/) const override { return 0; }

  void compute(const ggml_compute_params &params, ggml_tensor *op) const override {
    const auto &mark = *static_cast<const TapRecorder::Mark *>(static_cast<const Claim *>(op->extra));
    if (mark.out == nullptr) {
      return;  // planned while something was recorded, computed once more after that
    }
    const ggml_tensor *streams = streams_of(op);
    const int64_t n_embd = streams->ne[0];
    const int64_t n_streams = streams->ne[1];
    const df2_range share = df2_split(mark.n_rows, params.ith, params.nth);
    for (int64_t row = share.begin; row < share.end; ++row) {
      const float *first = static_cast<const float *>(streams->data) + row * n_streams * n_embd;
      mean_of_streams(first, n_streams, n_embd, mark.out + row * mark.stride);
    }
    mark.n_copied->fetch_add(share.end - share.begin, std::memory_order_relaxed);
  }

  bool only_reads() const override { return true; }
};

}  // namespace

bool has_stream_reader(ggml_cgraph *graph, const ggml_tensor *streams) {
  int n_readers = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const bool is_reader = streams_of(ggml_graph_node(graph, i)) == streams;
    if (is_reader && may_be_fused(graph, i)) {
      return false;
    }
    n_readers += is_reader ? 1 : 0;
  }
  return n_readers == 1;
}

const Rule &rules::stream_taps() {
  static const auto *rule = new StreamTapRule();
  return *rule;
}

}  // namespace df2
