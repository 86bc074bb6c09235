// Drafters made on the spot: random weights, any shape, fitting a given target.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct TinyDrafter {
  int32_t version = 2;
  int32_t n_layer = 2;
  int32_t n_embd = 0;  // 0: the target's
  int32_t n_head = 4;
  int32_t n_head_kv = 2;
  int32_t head_dim = 16;
  int32_t n_ff = 96;
  int32_t block_size = 8;
  int32_t conv_kernel_size = 2;
  int32_t conv_group_size = 16;
  int32_t selector_rank = 8;
  int32_t selector_top_k = 4;
  std::vector<int32_t> taps = {1, 3};
  int32_t window = 0;                  // with layer_has_window
  std::vector<bool> layer_has_window;  // one per layer
  bool is_causal = false;
  int32_t n_vocab_draft = 0;  // > 0: a head of its own, with a d2t map
  bool has_sinks = false;
  bool has_biases = false;
  bool has_post_norms = false;
  std::string rope_scaling;  // empty, "linear" or "yarn"
  float logit_softcap = 0.0f;
  float embedding_scale = 0.0f;
  float value_scale = 0.0f;
  uint32_t seed = 1;
};

// Writes a GGUF drafter for the target at target_path; its tokenizer and hidden size are copied from there.
void write_tiny_drafter(const TinyDrafter &shape, const std::string &target_path, const std::string &path);
