// The tensors of a drafter: which there are, and where each belongs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drafter/drafter_params.h"
#include "ggml.h"

namespace df2 {

// Optional tensors are null when the file does not have them.
struct DrafterLayer {
  ggml_tensor *attn_norm;
  ggml_tensor *attn_q, *attn_k, *attn_v, *attn_output;
  ggml_tensor *attn_q_bias, *attn_k_bias, *attn_v_bias, *attn_output_bias;  // optional
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
  ggml_tensor *output;           // optional: instead of the target's head; token_embd's if the file has only those
  ggml_tensor *draft_to_target;  // optional: I32 [1, rows of `output`], the target id of each
  std::vector<DrafterLayer> layers;
};

// What a tensor is for, which decides the types it may have and the memory it can be in.
enum class TensorUse {
  kNumbers,  // F32, taken one by one
  kProduct,  // a matrix of any type, multiplied with
  kLookUp,   // a matrix of any type, rows of which are read
  kIds,      // I64 token ids
};

// A member of DrafterWeights, or of one of its layers.
struct WeightPlace {
  ggml_tensor *DrafterWeights::*of_drafter;
  ggml_tensor *DrafterLayer::*of_layer;  // null: of_drafter is meant
  size_t layer;

  ggml_tensor *&in(DrafterWeights &weights) const {
    return of_layer != nullptr ? weights.layers[layer].*of_layer : weights.*of_drafter;
  }
};

// A tensor that a drafter file has, or may have.
struct WeightRule {
  std::string name;
  int n_dims;
  int64_t ne[3];
  TensorUse use;
  bool is_optional;
  WeightPlace place;
};

// All of a drafter with these parameters.
std::vector<WeightRule> weight_rules(const DrafterParams &params);

}  // namespace df2
