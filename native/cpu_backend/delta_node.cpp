#include "cpu_backend/delta_node.h"

#include <cmath>

#include "cpu_backend/node.h"
#include "cpu_backend/work_area.h"

namespace df2 {

namespace {

const float *floats_at(const ggml_tensor *tensor, int64_t i1, int64_t i2, int64_t i3) {
  return reinterpret_cast<const float *>(row_address(tensor, i1, i2, i3));
}

bool has_float_rows(const ggml_tensor *tensor) {
  return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float);
}

size_t token_bytes(int64_t n_tokens) {
  return round_up(static_cast<size_t>(n_tokens) * sizeof(df2_delta_token));
}

}  // namespace

DeltaNode::DeltaNode(const ggml_tensor *op) : op_(op) {
  const ggml_tensor *v = op->src[2];
  params.size = static_cast<int32_t>(v->ne[0]);
  params.gate_is_vector = op->src[3]->ne[0] == v->ne[0];
  params.scale = 1.0f / std::sqrt(static_cast<float>(params.size));
  n_heads = v->ne[1];
  n_key_heads = op->src[1]->ne[1];
  n_tokens = v->ne[2];
  n_sequences = v->ne[3];
  n_planes = op->op_params[0];
}

bool DeltaNode::is_known(const ggml_tensor *op) {
  const ggml_tensor *q = op->src[0];
  const ggml_tensor *k = op->src[1];
  const ggml_tensor *v = op->src[2];
  const ggml_tensor *gate = op->src[3];
  const ggml_tensor *beta = op->src[4];
  const ggml_tensor *state = op->src[5];
  const bool has_floats = has_float_rows(q) && has_float_rows(k) && has_float_rows(v) && has_float_rows(gate) &&
                          has_float_rows(beta) && has_float_rows(state) && has_float_rows(op);
  return !ggml_is_empty(op) && has_floats && q->ne[0] == v->ne[0] && k->ne[0] == v->ne[0] &&
         v->ne[0] <= DF2_DELTA_NET_MAX_SIZE && v->ne[3] % q->ne[3] == 0 && v->ne[3] % k->ne[3] == 0 &&
         ggml_is_contiguous(state) && ggml_is_contiguous(op) && op->op_params[0] >= 1;
}

size_t DeltaNode::output_bytes() const {
  return static_cast<size_t>(n_sequences * n_tokens * n_heads * params.size) * sizeof(float);
}

df2_delta_token DeltaNode::token(int64_t at, int64_t head, int64_t sequence) const {
  const ggml_tensor *q = op_->src[0];
  const ggml_tensor *k = op_->src[1];
  df2_delta_token token;
  token.query = floats_at(q, head % q->ne[1], at, sequence / (n_sequences / q->ne[3]));
  token.key = floats_at(k, head % n_key_heads, at, sequence / (n_sequences / k->ne[3]));
  token.value = floats_at(op_->src[2], head, at, sequence);
  token.gate = floats_at(op_->src[3], head, at, sequence);
  token.beta = *floats_at(op_->src[4], head, at, sequence);
  token.output = static_cast<float *>(op_->data) + ((sequence * n_tokens + at) * n_heads + head) * params.size;
  return token;
}

const float *DeltaNode::state(int64_t head, int64_t sequence) const {
  return floats_at(op_->src[5], 0, head, sequence);
}

float *DeltaNode::plane(int64_t plane, int64_t head, int64_t sequence) const {
  auto *planes = reinterpret_cast<float *>(static_cast<char *>(op_->data) + output_bytes());
  return planes + ((plane * n_sequences + sequence) * n_heads + head) * head_floats();
}

DeltaWork::DeltaWork(int32_t size, int64_t n_tokens, const ggml_compute_params &params)
    : workspace_bytes_(round_up(df2_delta_net_workspace_bytes(size))),
      memory_(align_up(params.wdata) + static_cast<size_t>(params.ith) * (workspace_bytes_ + token_bytes(n_tokens))) {}

size_t DeltaWork::bytes(int32_t size, int64_t n_tokens, int n_threads) {
  const size_t own = round_up(df2_delta_net_workspace_bytes(size)) + token_bytes(n_tokens);
  return kLine + static_cast<size_t>(n_threads) * own;
}

}  // namespace df2
