#include "drafter/drafter_weights.h"

#include <utility>

namespace df2 {

namespace {

// A list of rules in the making, of the drafter or of one layer.
class RuleList {
 public:
  RuleList(std::vector<WeightRule> *rules, std::string prefix, size_t layer)
      : rules_(rules), prefix_(std::move(prefix)), layer_(layer) {}

  template <typename Member>
  void vector(Member member, const char *name, int64_t length) {
    add(member, name, 1, length, 1, 1, TensorUse::kNumbers);
  }

  template <typename Member>
  void optional_vector(Member member, const char *name, int64_t length) {
    vector(member, name, length);
    rules_->back().is_optional = true;
  }

  template <typename Member>
  void matrix(Member member, const char *name, int64_t columns, int64_t rows, TensorUse use = TensorUse::kProduct) {
    add(member, name, 2, columns, rows, 1, use);
  }

  template <typename Member>
  void optional_matrix(Member member, const char *name, int64_t columns, int64_t rows, TensorUse use) {
    matrix(member, name, columns, rows, use);
    rules_->back().is_optional = true;
  }

  template <typename Member>
  void add(Member member, const char *name, int n_dims, int64_t ne0, int64_t ne1, int64_t ne2, TensorUse use) {
    rules_->push_back({prefix_ + name, n_dims, {ne0, ne1, ne2}, use, false, place(member)});
  }

 private:
  WeightPlace place(ggml_tensor *DrafterWeights::*member) const { return {member, nullptr, 0}; }
  WeightPlace place(ggml_tensor *DrafterLayer::*member) const { return {nullptr, member, layer_}; }

  std::vector<WeightRule> *rules_;
  std::string prefix_;
  size_t layer_;
};

void add_drafter(RuleList list, const DrafterParams &params) {
  using Weights = DrafterWeights;
  const int64_t n_embd = params.n_embd;
  const int64_t n_vocab = params.n_vocab;
  const int64_t n_features = static_cast<int64_t>(params.taps.size()) * params.n_embd_target;
  list.matrix(&Weights::fc, "fc.weight", n_features, n_embd);
  list.vector(&Weights::fc_norm, "enc.output_norm.weight", n_embd);
  list.vector(&Weights::output_norm, "output_norm.weight", n_embd);
  list.optional_vector(&Weights::rope_freqs, "rope_freqs.weight", params.head_dim / 2);
  list.optional_matrix(&Weights::token_embd, "token_embd.weight", n_embd, n_vocab, TensorUse::kLookUp);
  list.optional_matrix(&Weights::output, "output.weight", n_embd, params.n_vocab_draft, TensorUse::kProduct);
  list.optional_matrix(&Weights::draft_to_target, "d2t", params.n_vocab_draft, 1, TensorUse::kIds);
  if (params.version == 2) {
    const int64_t rank = params.selector_rank;
    list.matrix(&Weights::selector_hidden, "selector_hidden.weight", n_embd, rank);
    list.matrix(&Weights::selector_predecessor, "selector_predecessor.weight", rank, n_vocab, TensorUse::kLookUp);
    list.matrix(&Weights::selector_successor, "selector_successor.weight", rank, n_vocab, TensorUse::kLookUp);
  }
}

void add_attention(RuleList list, const DrafterParams &params) {
  using Layer = DrafterLayer;
  const int64_t n_embd = params.n_embd;
  const int64_t n_q = static_cast<int64_t>(params.head_dim) * params.n_head;
  const int64_t n_kv = static_cast<int64_t>(params.head_dim) * params.n_head_kv;
  list.vector(&Layer::attn_norm, "attn_norm.weight", n_embd);
  list.matrix(&Layer::attn_q, "attn_q.weight", n_embd, n_q);
  list.matrix(&Layer::attn_k, "attn_k.weight", n_embd, n_kv);
  list.matrix(&Layer::attn_v, "attn_v.weight", n_embd, n_kv);
  list.matrix(&Layer::attn_output, "attn_output.weight", n_q, n_embd);
  list.optional_vector(&Layer::attn_q_bias, "attn_q.bias", n_q);
  list.optional_vector(&Layer::attn_k_bias, "attn_k.bias", n_kv);
  list.optional_vector(&Layer::attn_v_bias, "attn_v.bias", n_kv);
  list.optional_vector(&Layer::attn_output_bias, "attn_output.bias", n_embd);
  list.vector(&Layer::attn_q_norm, "attn_q_norm.weight", params.head_dim);
  list.vector(&Layer::attn_k_norm, "attn_k_norm.weight", params.head_dim);
  list.optional_vector(&Layer::attn_sinks, "attn_sinks.weight", params.n_head);
  list.optional_vector(&Layer::attn_post_norm, "post_attention_norm.weight", n_embd);
}

void add_feed_forward(RuleList list, const DrafterParams &params) {
  using Layer = DrafterLayer;
  list.vector(&Layer::ffn_norm, "ffn_norm.weight", params.n_embd);
  list.matrix(&Layer::ffn_gate, "ffn_gate.weight", params.n_embd, params.n_ff);
  list.matrix(&Layer::ffn_up, "ffn_up.weight", params.n_embd, params.n_ff);
  list.matrix(&Layer::ffn_down, "ffn_down.weight", params.n_ff, params.n_embd);
  list.optional_vector(&Layer::ffn_post_norm, "post_ffw_norm.weight", params.n_embd);
  list.optional_vector(&Layer::out_scale, "layer_output_scale.weight", 1);
}

void add_convolutions(RuleList list, const DrafterParams &params) {
  using Layer = DrafterLayer;
  const int64_t n_embd = params.n_embd;
  const int64_t n_taps = params.conv_kernel_size;
  const int64_t n_coefficients = 2 * n_taps * (n_embd / params.conv_group_size);
  list.add(&Layer::attn_conv_base, "attn_conv_base", 3, n_embd, n_taps, 2, TensorUse::kNumbers);
  list.matrix(&Layer::attn_conv_proj, "attn_conv_proj.weight", n_embd, n_coefficients);
  list.add(&Layer::ffn_conv_base, "ffn_conv_base", 3, n_embd, n_taps, 2, TensorUse::kNumbers);
  list.matrix(&Layer::ffn_conv_proj, "ffn_conv_proj.weight", n_embd, n_coefficients);
}

}  // namespace

std::vector<WeightRule> weight_rules(const DrafterParams &params) {
  std::vector<WeightRule> rules;
  add_drafter(RuleList(&rules, "", 0), params);
  for (int32_t i = 0; i < params.n_layer; ++i) {
    const RuleList layer(&rules, "blk." + std::to_string(i) + ".", static_cast<size_t>(i));
    add_attention(layer, params);
    add_feed_forward(layer, params);
    if (params.version == 2) {
      add_convolutions(layer, params);
    }
  }
  return rules;
}

}  // namespace df2
