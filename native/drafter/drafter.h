// A loaded drafter: hyper-parameters and memory-mapped weights, immutable and shareable between sessions.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dflash2.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace df2 {

class GgufFile;
class MappedFile;

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

// Every number a drafter file states, checked against the others. Layer ids of taps count layer inputs, as in the
// file: k means the output of layer k - 1.
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
  bool is_causal;
  bool gelu;  // feed-forward activation: gelu or silu
  float norm_eps;
  float attn_scale;       // of the attention logits
  float value_scale;      // of the attention output; 1: none
  float embedding_scale;  // of the block's embeddings; 1: none
  float logit_scale;      // 1: none
  float logit_softcap;    // 0: none
  RopeParams rope;
  std::vector<int32_t> taps;
  std::vector<bool> layer_has_window;
};

// Optional tensors are null when the file does not have them.
struct DrafterLayer {
  ggml_tensor *attn_norm;
  ggml_tensor *attn_q, *attn_k, *attn_v, *attn_output;
  ggml_tensor *attn_q_norm, *attn_k_norm;
  ggml_tensor *attn_sinks;      // optional
  ggml_tensor *attn_post_norm;  // optional
  ggml_tensor *ffn_norm;
  ggml_tensor *ffn_gate, *ffn_up, *ffn_down;
  ggml_tensor *ffn_post_norm;                    // optional
  ggml_tensor *out_scale;                        // optional
  ggml_tensor *attn_conv_base, *attn_conv_proj;  // version 2
  ggml_tensor *ffn_conv_base, *ffn_conv_proj;    // version 2
};

struct DrafterWeights {
  ggml_tensor *fc;
  ggml_tensor *fc_norm;
  ggml_tensor *output_norm;
  ggml_tensor *selector_hidden;  // version 2, as the next two
  ggml_tensor *selector_predecessor;
  ggml_tensor *selector_successor;
  ggml_tensor *rope_freqs;       // optional
  ggml_tensor *token_embd;       // optional: instead of the target's embeddings
  ggml_tensor *output;           // optional: instead of the target's head
  ggml_tensor *draft_to_target;  // optional: I32 [1, rows of `output`], the target id of each
  std::vector<DrafterLayer> layers;
};

class Drafter {
 public:
  // packed_type: of the CPU's, for matrices that are multiplied; null leaves them in the file's layout.
  // with_kernels: computes on this library's kernels, else by ggml alone.
  // Throws Error: DF2_EIO, DF2_EFORMAT, DF2_EUNSUPPORTED, DF2_ENOMEM.
  Drafter(const std::string &path, ggml_backend_buffer_type_t packed_type, bool with_kernels);

  const DrafterParams &params() const { return params_; }
  const DrafterWeights &weights() const { return weights_; }
  const std::string &path() const { return path_; }
  bool with_kernels() const { return with_kernels_; }
  size_t weights_bytes() const { return weights_bytes_; }
  size_t packed_bytes() const;

  // token_hash() of every tokenizer entry, to tell whether a target speaks the same tokens.
  const std::vector<uint32_t> &token_hashes() const { return token_hashes_; }

 private:
  std::string path_;
  bool with_kernels_;
  DrafterParams params_;
  DrafterWeights weights_;
  std::vector<uint32_t> token_hashes_;
  size_t weights_bytes_ = 0;
  std::shared_ptr<const MappedFile> map_;
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_context_ptr map_context_;
  ggml_context_ptr packed_context_;
  ggml_backend_buffer_ptr packed_buffer_;
};

// Reads and checks every key of a drafter file. Throws DF2_EFORMAT, DF2_EUNSUPPORTED.
DrafterParams read_drafter_params(const GgufFile &file);

}  // namespace df2
