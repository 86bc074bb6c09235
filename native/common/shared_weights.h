#pragma once

struct ggml_tensor;

namespace df2 {

// Tensors of the target's that the drafter computes with; they may sit in any buffer the CPU back end understands, so
// only graphs may touch them.
struct SharedWeights {
  ggml_tensor *token_embd;  // [n_embd, >= n_vocab]
  ggml_tensor *head;        // [n_embd, >= n_vocab]
  ggml_tensor *head_bias;   // [rows of head]; null: none
  float embedding_scale;    // what the target multiplies rows of token_embd with; 1: nothing
  bool changes_logits;      // whether it scales or caps what comes from the head
};

}  // namespace df2
