// Every number a drafter file states.
#pragma once

#include <cstdint>
#include <vector>

namespace df2 {

class GgufFile;

struct RopeParams {
  int32_t n_dims;
  int32_t n_ctx_original;
  float freq_base;
  float freq_scale;
  float ext_factor;
  float attn_factor;
  float beta_fast;
  float beta_slow;
};

// Checked against each other. Layer ids of taps count layer inputs, as in the file: k means the output of layer k - 1.
struct DrafterParams {
  int32_t version;
  int32_t n_layer;
  int32_t n_embd;
  int32_t n_ff;
  int32_t n_vocab;        // tokenizer rows in the file
  int32_t n_vocab_draft;  // rows of the drafter's own head; 0 when it uses the target's
  int32_t n_head;
  int32_t n_head_kv;
  int32_t head_dim;
  int32_t n_ctx_train;
  int32_t block_size;
  int32_t conv_kernel_size;
  int32_t conv_group_size;
  int32_t selector_rank;
  int32_t selector_top_k;
  int32_t n_embd_target;  // width of one tap
  int32_t mask_token;
  int32_t window;  // 0: no layer has a sliding window
  // Whether positions of the block see only those before them, in layers with a window and in those without.
  bool is_causal_windowed;
  bool is_causal_full;
  bool gelu;  // feed-forward activation: gelu or silu
  float norm_eps;
  float attn_scale;       // of the attention logits
  float value_scale;      // of the attention output; 1: none
  float embedding_scale;  // of the block's embeddings; 0: not stated, 1: none
  float logit_scale;      // 0: not stated, 1: none
  float logit_softcap;    // 0: none
  RopeParams rope;
  std::vector<int32_t> taps;
  std::vector<bool> layer_has_window;
};

// Reads and checks every key of a drafter file. Throws DF2_EFORMAT, DF2_EUNSUPPORTED.
DrafterParams read_drafter_params(const GgufFile &file);

}  // namespace df2
