#include "drafter/drafter_params.h"

#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "common/gguf_file.h"

namespace df2 {

namespace {

// Upper limits far above any real drafter; they keep products of two of them inside 64 bits and allocations sane.
constexpr int32_t kMaxLayers = 256;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxVocab = 1 << 24;
constexpr int32_t kMaxHeads = 1 << 12;
constexpr int32_t kMaxHeadDim = 1 << 10;
constexpr int32_t kMaxContext = 1 << 30;
constexpr int32_t kMaxWindow = 1 << 20;  // the cache is allocated for it

[[noreturn]] void fail(const GgufFile &file, df2_status status, const std::string &problem) {
  throw Error(status, format("'%s': %s", file.path().c_str(), problem.c_str()));
}

const TensorInfo *find_tensor(const GgufFile &file, const std::string &name) {
  for (const TensorInfo &tensor : file.tensors()) {
    if (tensor.name == name) {
      return &tensor;
    }
  }
  return nullptr;
}

// YaRN's magnitude correction where the file does not state it. llama.cpp folds it so that ggml_rope_ext's own
// correction cancels; the arithmetic is that of its context constructor.
float yarn_attn_factor(float factor, float log_multiplier) {
  const auto magnitude = [factor](float scale) {
    return factor <= 1.0f ? 1.0f : 0.1f * scale * std::log(factor) + 1.0f;
  };
  const float attn = log_multiplier != 0.0f ? magnitude(1.0f) / magnitude(log_multiplier) : magnitude(1.0f);
  return attn / (1.0f + 0.1f * std::log(factor));
}

RopeParams read_rope(const GgufFile &file, const DrafterParams &params) {
  RopeParams rope;
  rope.n_dims = file.integer("dflash.rope.dimension_count", 2, params.head_dim, params.head_dim);
  if (rope.n_dims % 2 != 0) {
    fail(file, DF2_EFORMAT, "dflash.rope.dimension_count must be even");
  }
  rope.n_ctx_original = file.integer("dflash.rope.scaling.original_context_length", 1, kMaxContext, params.n_ctx_train);
  rope.freq_base = file.number("dflash.rope.freq_base", 10000.0f);
  rope.beta_fast = file.number("dflash.rope.scaling.yarn_beta_fast", 32.0f);
  rope.beta_slow = file.number("dflash.rope.scaling.yarn_beta_slow", 1.0f);
  rope.ext_factor = 0.0f;
  rope.attn_factor = 1.0f;
  const std::string type = file.text("dflash.rope.scaling.type", "linear");
  const float factor = file.number("dflash.rope.scaling.factor", 1.0f);
  if (rope.freq_base <= 0.0f || factor <= 0.0f) {
    fail(file, DF2_EFORMAT, "the rope base and scaling factor must be positive");
  }
  if (type != "none" && type != "linear" && type != "yarn") {
    fail(file, DF2_EUNSUPPORTED,
         format("rope scaling '%s' is not supported (none, linear and yarn are)", type.c_str()));
  }
  rope.freq_scale = type == "none" ? 1.0f : 1.0f / factor;
  if (type == "yarn") {
    rope.ext_factor = file.number("dflash.rope.scaling.yarn_ext_factor", 1.0f);
    // ggml multiplies by its own correction when it extrapolates, so the wanted magnitude is divided by that
    const float magnitude = file.number("dflash.rope.scaling.yarn_attn_factor", 0.0f);
    if (magnitude > 0.0f) {
      rope.attn_factor = rope.ext_factor != 0.0f ? magnitude / (1.0f + 0.1f * std::log(factor)) : magnitude;
    } else if (rope.ext_factor != 0.0f) {
      rope.attn_factor = yarn_attn_factor(factor, file.number("dflash.rope.scaling.yarn_log_multiplier", 0.0f));
    }
  }
  rope.attn_factor *= file.number("dflash.rope.scaling.attn_factor", 1.0f);
  return rope;
}

void read_window(const GgufFile &file, DrafterParams *params) {
  params->window = file.integer("dflash.attention.sliding_window", 0, kMaxWindow, 0);
  params->layer_has_window.assign(params->n_layer, false);
  if (params->window == 0) {
    return;
  }
  const std::vector<bool> pattern = file.flags("dflash.attention.sliding_window_pattern");
  if (pattern.size() != static_cast<size_t>(params->n_layer)) {
    fail(file, DF2_EFORMAT,
         format("the sliding-window pattern has %zu entries for %d layers", pattern.size(), params->n_layer));
  }
  params->layer_has_window = pattern;
  if (std::none_of(pattern.begin(), pattern.end(), [](bool windowed) { return windowed; })) {
    params->window = 0;
  }
}

// llama.cpp's key is about all layers. Where they differ, those with a window are causal, or those without.
void read_causality(const GgufFile &file, DrafterParams *params) {
  const bool stated = file.flag("dflash.attention.causal", false);
  params->is_causal_windowed = stated;
  params->is_causal_full = stated;
  constexpr char kPattern[] = "dflash2.attention.causal_pattern";
  if (!file.has(kPattern)) {
    return;
  }
  const std::vector<bool> pattern = file.flags(kPattern);
  if (pattern.size() != static_cast<size_t>(params->n_layer)) {
    fail(file, DF2_EFORMAT, format("%s has %zu entries for %d layers", kPattern, pattern.size(), params->n_layer));
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    (params->layer_has_window[i] ? params->is_causal_windowed : params->is_causal_full) = pattern[i];
  }
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != (params->layer_has_window[i] ? params->is_causal_windowed : params->is_causal_full)) {
      fail(file, DF2_EUNSUPPORTED,
           format("%s tells layers with a sliding window apart from each other, or layers without one", kPattern));
    }
  }
}

void read_version_2(const GgufFile &file, DrafterParams *params) {
  params->conv_kernel_size = file.integer("dflash.conv_kernel_size", 1, 64);
  params->conv_group_size = file.integer("dflash.conv_group_size", 1, params->n_embd);
  params->selector_rank = file.integer("dflash.selector_rank", 1, kMaxWidth);
  params->selector_top_k = file.integer("dflash.selector_top_k", 1, 1024);
  if (params->n_embd % params->conv_group_size != 0) {
    fail(file, DF2_EFORMAT,
         format("the hidden size %d is not a multiple of the convolution's group size %d", params->n_embd,
                params->conv_group_size));
  }
  const int32_t n_choices = params->n_vocab_draft > 0 ? params->n_vocab_draft : params->n_vocab;
  if (params->selector_top_k > n_choices) {
    fail(file, DF2_EFORMAT,
         format("%d candidates cannot be chosen from a vocabulary of %d", params->selector_top_k, n_choices));
  }
}

void read_taps(const GgufFile &file, DrafterParams *params) {
  params->taps = file.integers("dflash.target_layers");
  if (params->taps.empty() || params->taps.size() > DF2_MAX_TAPS) {
    fail(file, DF2_EFORMAT,
         format("dflash.target_layers has %zu entries; 1 to %d are possible", params->taps.size(), DF2_MAX_TAPS));
  }
  for (size_t i = 0; i < params->taps.size(); ++i) {
    if (params->taps[i] < 1 || std::count(params->taps.begin(), params->taps.end(), params->taps[i]) != 1) {
      fail(file, DF2_EFORMAT, "dflash.target_layers must hold different layer inputs, counted from 1");
    }
  }
}

void check_variant(const GgufFile &file) {
  if (file.integer("split.count", 0, 65535, 1) > 1) {
    fail(file, DF2_EUNSUPPORTED, "a part of a split drafter; merge the parts first (llama-gguf-split --merge)");
  }
  const std::string architecture = file.text("general.architecture");
  if (architecture != "dflash") {
    fail(file, DF2_EFORMAT, format("this is a '%s' model, not a DFlash drafter", architecture.c_str()));
  }
  if (find_tensor(file, "markov_w1.weight") != nullptr) {
    fail(file, DF2_EUNSUPPORTED, "this is a DSpark drafter; DFlash 1 and DFlash 2 are supported");
  }
  if (file.has("dflash.hyper_connection.count")) {
    fail(file, DF2_EUNSUPPORTED, "this drafter is built of DeepSeek-V4 blocks; DFlash 1 and DFlash 2 are supported");
  }
}

void read_sizes(const GgufFile &file, DrafterParams *params) {
  params->n_layer = file.integer("dflash.block_count", 1, kMaxLayers);
  params->n_embd = file.integer("dflash.embedding_length", 1, kMaxWidth);
  params->n_ff = file.integer("dflash.feed_forward_length", 1, kMaxWidth);
  params->n_ctx_train = file.integer("dflash.context_length", 1, kMaxContext);
  params->block_size = file.integer("dflash.block_size", 2, DF2_MAX_DRAFT + 1);
}

void read_heads(const GgufFile &file, DrafterParams *params) {
  params->n_head = file.integer("dflash.attention.head_count", 1, kMaxHeads);
  params->n_head_kv = file.integer("dflash.attention.head_count_kv", 1, kMaxHeads, params->n_head);
  if (params->n_head % params->n_head_kv != 0) {
    fail(file, DF2_EFORMAT, format("%d attention heads cannot share %d K/V heads", params->n_head, params->n_head_kv));
  }
  params->head_dim = file.integer("dflash.attention.key_length", 1, kMaxHeadDim, params->n_embd / params->n_head);
  const int32_t value_length = file.integer("dflash.attention.value_length", 1, kMaxHeadDim, params->head_dim);
  if (params->head_dim < 1 || value_length != params->head_dim) {
    fail(file, DF2_EFORMAT, "key and value heads must have the same positive size");
  }
}

void read_arithmetic(const GgufFile &file, DrafterParams *params) {
  params->norm_eps = file.number("dflash.attention.layer_norm_rms_epsilon");
  if (params->norm_eps < 0.0f) {
    fail(file, DF2_EFORMAT, "dflash.attention.layer_norm_rms_epsilon must not be negative");
  }
  // upstream writes 0 for "absent" in these
  const auto scale_of = [&](const char *key, float absent) {
    const float value = file.number(key, 0.0f);
    return value != 0.0f ? value : absent;
  };
  params->attn_scale = scale_of("dflash.attention.scale", 1.0f / std::sqrt(static_cast<float>(params->head_dim)));
  params->value_scale = scale_of("dflash.attention.value_scale", 1.0f);
  params->embedding_scale = file.number("dflash.embedding_scale", 0.0f);
  params->logit_scale = file.number("dflash.logit_scale", 0.0f);
  params->logit_softcap = std::max(0.0f, file.number("dflash.final_logit_softcapping", 0.0f));
  const std::string activation = file.text("dflash.hidden_activation", "silu");
  params->gelu = activation == "gelu" || activation == "gelu_pytorch_tanh";
  if (!params->gelu && activation != "silu") {
    fail(file, DF2_EUNSUPPORTED, format("activation '%s' is not supported (silu and gelu are)", activation.c_str()));
  }
}

// The width of a tap is not stated: `fc` takes all of them.
void read_target_width(const GgufFile &file, const TensorInfo &fc, DrafterParams *params) {
  const auto n_taps = static_cast<int64_t>(params->taps.size());
  const int64_t width = fc.ne[0] / n_taps;
  if (fc.ne[0] % n_taps != 0 || width < 1 || width > kMaxWidth) {
    fail(file, DF2_EFORMAT,
         format("fc takes %lld inputs, which %lld tapped layers cannot share evenly", static_cast<long long>(fc.ne[0]),
                static_cast<long long>(n_taps)));
  }
  params->n_embd_target = static_cast<int32_t>(width);
}

void read_tokenizer(const GgufFile &file, DrafterParams *params) {
  const size_t n_tokens = file.texts("tokenizer.ggml.tokens").size();
  if (n_tokens < 1 || n_tokens > static_cast<size_t>(kMaxVocab)) {
    fail(file, DF2_EFORMAT, "the tokenizer is empty or absurdly large");
  }
  params->n_vocab = static_cast<int32_t>(n_tokens);
  if (!file.has("tokenizer.ggml.mask_token_id")) {
    fail(file, DF2_EFORMAT, "there is no tokenizer.ggml.mask_token_id; convert the drafter again");
  }
  params->mask_token = file.integer("tokenizer.ggml.mask_token_id", 0, params->n_vocab - 1);
}

// A head of the drafter's own may have fewer rows than the tokenizer has tokens. Embeddings of its own serve as a head
// where there is no other.
void read_draft_vocabulary(const GgufFile &file, DrafterParams *params) {
  const TensorInfo *head = find_tensor(file, "output.weight");
  if (head == nullptr) {
    params->n_vocab_draft = find_tensor(file, "token_embd.weight") != nullptr ? params->n_vocab : 0;
    return;
  }
  if (head->ne[1] < 1 || head->ne[1] > params->n_vocab) {
    fail(file, DF2_EFORMAT,
         format("output.weight has %lld rows for a vocabulary of %d", static_cast<long long>(head->ne[1]),
                params->n_vocab));
  }
  params->n_vocab_draft = static_cast<int32_t>(head->ne[1]);
  if (params->n_vocab_draft != params->n_vocab && find_tensor(file, "d2t") == nullptr) {
    fail(file, DF2_EFORMAT, "a reduced output.weight needs a d2t tensor");
  }
}

void refuse_shared_values(const GgufFile &file, const DrafterParams &params) {
  for (int32_t i = 0; i < params.n_layer; ++i) {
    if (find_tensor(file, format("blk.%d.attn_v.weight", i)) == nullptr) {
      fail(file, DF2_EUNSUPPORTED, format("layer %d has no attn_v.weight; K/V sharing is not supported", i));
    }
  }
}

}  // namespace

DrafterParams read_drafter_params(const GgufFile &file) {
  check_variant(file);
  const TensorInfo *fc = find_tensor(file, "fc.weight");
  if (fc == nullptr) {
    fail(file, DF2_EFORMAT, "tensor 'fc.weight' is missing; convert the drafter again");
  }
  DrafterParams params = {};
  params.version = find_tensor(file, "selector_hidden.weight") != nullptr ? 2 : 1;
  read_sizes(file, &params);
  read_heads(file, &params);
  read_arithmetic(file, &params);
  params.rope = read_rope(file, params);
  read_window(file, &params);
  read_causality(file, &params);
  read_taps(file, &params);
  read_target_width(file, *fc, &params);
  read_tokenizer(file, &params);
  read_draft_vocabulary(file, &params);
  if (params.version == 2) {
    read_version_2(file, &params);
  }
  refuse_shared_values(file, params);
  return params;
}

}  // namespace df2
