#include "tiny_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>

#include "ggml.h"
#include "gguf.h"

namespace {

class Writer {
 public:
  Writer(const TinyDrafter &shape, const std::string &target_path)
      : shape_(shape), gguf_(gguf_init_empty()), generator_(shape.seed) {
    const ggml_init_params init = {size_t{16} << 20, nullptr, false};
    ggml_ = ggml_init(init);
    gguf_context *target = gguf_init_from_file(target_path.c_str(), {true, nullptr});
    if (target == nullptr) {
      throw std::runtime_error("cannot read the target " + target_path);
    }
    gguf_set_kv(gguf_, target);
    n_embd_ = static_cast<int32_t>(gguf_get_val_u32(target, gguf_find_key(target, "llama.embedding_length")));
    n_vocab_ = static_cast<int32_t>(gguf_get_arr_n(target, gguf_find_key(target, "tokenizer.ggml.tokens")));
    gguf_free(target);
    n_embd_target_ = n_embd_;
    n_embd_ = shape.n_embd > 0 ? shape.n_embd : n_embd_;
  }

  ~Writer() {
    gguf_free(gguf_);
    ggml_free(ggml_);
  }

  void write(const std::string &path) {
    keys();
    tensors();
    if (!gguf_write_to_file(gguf_, path.c_str(), false)) {
      throw std::runtime_error("cannot write " + path);
    }
  }

 private:
  void u32(const char *key, int32_t value) {
    gguf_set_val_u32(gguf_, (std::string("dflash.") + key).c_str(), static_cast<uint32_t>(value));
  }
  void f32(const char *key, float value) { gguf_set_val_f32(gguf_, (std::string("dflash.") + key).c_str(), value); }

  void keys() {
    gguf_set_val_str(gguf_, "general.architecture", "dflash");
    u32("block_count", shape_.n_layer);
    u32("context_length", 512);
    u32("embedding_length", n_embd_);
    u32("feed_forward_length", shape_.n_ff);
    u32("attention.head_count", shape_.n_head);
    u32("attention.head_count_kv", shape_.n_head_kv);
    u32("attention.key_length", shape_.head_dim);
    u32("attention.value_length", shape_.head_dim);
    f32("attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_bool(gguf_, "dflash.attention.causal", shape_.is_causal);
    u32("block_size", shape_.block_size);
    gguf_set_arr_data(gguf_, "dflash.target_layers", GGUF_TYPE_INT32, shape_.taps.data(), shape_.taps.size());
    gguf_set_val_u32(gguf_, "tokenizer.ggml.mask_token_id", 5);
    if (shape_.version == 2) {
      u32("conv_kernel_size", shape_.conv_kernel_size);
      u32("conv_group_size", shape_.conv_group_size);
      u32("selector_rank", shape_.selector_rank);
      u32("selector_top_k", shape_.selector_top_k);
    }
    if (shape_.window > 0) {
      std::vector<int8_t> pattern(shape_.layer_has_window.begin(), shape_.layer_has_window.end());
      u32("attention.sliding_window", shape_.window);
      gguf_set_arr_data(gguf_, "dflash.attention.sliding_window_pattern", GGUF_TYPE_BOOL, pattern.data(),
                        pattern.size());
    }
    if (!shape_.rope_scaling.empty()) {
      gguf_set_val_str(gguf_, "dflash.rope.scaling.type", shape_.rope_scaling.c_str());
      f32("rope.scaling.factor", 4.0f);
      u32("rope.scaling.original_context_length", 128);
    }
    f32("final_logit_softcapping", shape_.logit_softcap);
    f32("embedding_scale", shape_.embedding_scale);
    f32("attention.value_scale", shape_.value_scale);
  }

  ggml_tensor *tensor(const std::string &name, std::vector<int64_t> ne, float mean, float deviation) {
    ggml_tensor *tensor = ggml_new_tensor(ggml_, GGML_TYPE_F32, static_cast<int>(ne.size()), ne.data());
    ggml_set_name(tensor, name.c_str());
    std::normal_distribution<float> normal(mean, deviation);
    auto *data = static_cast<float *>(tensor->data);
    std::generate(data, data + ggml_nelements(tensor), [&] { return normal(generator_); });
    gguf_add_tensor(gguf_, tensor);
    return tensor;
  }

  void matrix(const std::string &name, int64_t columns, int64_t rows) {
    tensor(name, {columns, rows}, 0.0f, 1.0f / std::sqrt(static_cast<float>(columns)));
  }
  void norm(const std::string &name, int64_t length) { tensor(name, {length}, 1.0f, 0.1f); }

  void tensors() {
    const int64_t n_features = static_cast<int64_t>(shape_.taps.size()) * n_embd_target_;
    matrix("fc.weight", n_features, n_embd_);
    norm("enc.output_norm.weight", n_embd_);
    norm("output_norm.weight", n_embd_);
    for (int32_t i = 0; i < shape_.n_layer; ++i) {
      layer("blk." + std::to_string(i) + ".");
    }
    if (shape_.version == 2) {
      matrix("selector_hidden.weight", n_embd_, shape_.selector_rank);
      matrix("selector_predecessor.weight", shape_.selector_rank, n_vocab_);
      matrix("selector_successor.weight", shape_.selector_rank, n_vocab_);
    }
    if (shape_.n_vocab_draft > 0) {
      own_head();
    }
  }

  void layer(const std::string &prefix) {
    const int64_t n_q = static_cast<int64_t>(shape_.n_head) * shape_.head_dim;
    const int64_t n_kv = static_cast<int64_t>(shape_.n_head_kv) * shape_.head_dim;
    norm(prefix + "attn_norm.weight", n_embd_);
    matrix(prefix + "attn_q.weight", n_embd_, n_q);
    matrix(prefix + "attn_k.weight", n_embd_, n_kv);
    matrix(prefix + "attn_v.weight", n_embd_, n_kv);
    matrix(prefix + "attn_output.weight", n_q, n_embd_);
    norm(prefix + "attn_q_norm.weight", shape_.head_dim);
    norm(prefix + "attn_k_norm.weight", shape_.head_dim);
    norm(prefix + "ffn_norm.weight", n_embd_);
    matrix(prefix + "ffn_gate.weight", n_embd_, shape_.n_ff);
    matrix(prefix + "ffn_up.weight", n_embd_, shape_.n_ff);
    matrix(prefix + "ffn_down.weight", shape_.n_ff, n_embd_);
    if (shape_.has_sinks) {
      norm(prefix + "attn_sinks.weight", shape_.n_head);
    }
    if (shape_.has_biases) {
      norm(prefix + "attn_q.bias", n_q);
      norm(prefix + "attn_k.bias", n_kv);
      norm(prefix + "attn_v.bias", n_kv);
      norm(prefix + "attn_output.bias", n_embd_);
    }
    if (shape_.has_post_norms) {
      norm(prefix + "post_attention_norm.weight", n_embd_);
      norm(prefix + "post_ffw_norm.weight", n_embd_);
      norm(prefix + "layer_output_scale.weight", 1);
    }
    if (shape_.version == 2) {
      const int64_t n_coefficients =
          2 * static_cast<int64_t>(shape_.conv_kernel_size) * (n_embd_ / shape_.conv_group_size);
      for (const char *sublayer : {"attn", "ffn"}) {
        tensor(prefix + sublayer + "_conv_base", {n_embd_, shape_.conv_kernel_size, 2}, 0.5f, 0.3f);
        matrix(prefix + sublayer + "_conv_proj.weight", n_embd_, n_coefficients);
      }
    }
  }

  void own_head() {
    matrix("output.weight", n_embd_, shape_.n_vocab_draft);
    ggml_tensor *map = ggml_new_tensor_1d(ggml_, GGML_TYPE_I64, shape_.n_vocab_draft);
    ggml_set_name(map, "d2t");
    for (int64_t i = 0; i < shape_.n_vocab_draft; ++i) {
      static_cast<int64_t *>(map->data)[i] = n_vocab_ - 1 - i;
    }
    gguf_add_tensor(gguf_, map);
  }

  const TinyDrafter &shape_;
  gguf_context *gguf_;
  ggml_context *ggml_ = nullptr;
  std::mt19937 generator_;
  int32_t n_embd_ = 0;
  int32_t n_embd_target_ = 0;
  int32_t n_vocab_ = 0;
};

}  // namespace

void write_tiny_drafter(const TinyDrafter &shape, const std::string &target_path, const std::string &path) {
  Writer(shape, target_path).write(path);
}
