#include "drafter/drafter.h"

#include <cstring>
#include <map>
#include <utility>

#include "common/error.h"
#include "common/gguf_file.h"
#include "common/token_hash.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

// What a matrix is for: only products can read packed ones.
enum Use { kProduct, kLookUp };

// Whether weights of this type and shape can be multiplied when they are in a buffer of the type given.
bool can_multiply_in(ggml_backend_buffer_type_t buffer_type, const TensorInfo &info) {
  const ggml_init_params init = {/*.mem_size =*/3 * ggml_tensor_overhead(), /*.mem_buffer =*/nullptr,
                                 /*.no_alloc =*/true};
  const ggml_context_ptr context(ggml_init(init));
  const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(buffer_type, 0));
  if (context == nullptr || nothing == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
  }
  ggml_tensor *weights = ggml_new_tensor(context.get(), info.type, 2, info.ne);
  weights->buffer = nothing.get();
  ggml_tensor *product =
      ggml_mul_mat(context.get(), weights, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, info.ne[0], 1));
  return ggml_backend_dev_supports_op(ggml_backend_buft_get_device(buffer_type), product);
}

// Creates ggml tensors over the mapped file, checking each against the shape the parameters imply. Matrices that can be
// packed get memory of their own.
class TensorLoader {
 public:
  // packed_type: null if nothing is to be packed.
  TensorLoader(const GgufFile &file, ggml_context *context, ggml_backend_buffer_t buffer, ggml_context *packed_context,
               ggml_backend_buffer_type_t packed_type)
      : file_(file), context_(context), buffer_(buffer), packed_context_(packed_context), packed_type_(packed_type) {
    for (const TensorInfo &tensor : file.tensors()) {
      unused_[tensor.name] = &tensor;
    }
  }

  bool has(const std::string &name) const { return unused_.count(name) != 0; }

  // A matrix of any type the CPU can compute with: [columns, rows].
  ggml_tensor *matrix(const std::string &name, int64_t columns, int64_t rows, Use use = kProduct) {
    const TensorInfo &info = take(name);
    check_shape(info, columns, rows, 1);
    const ggml_type_traits *traits = ggml_get_type_traits(info.type);
    const bool computable = info.type == GGML_TYPE_F32 || (traits != nullptr && traits->to_float != nullptr &&
                                                           ggml_get_type_traits_cpu(info.type)->vec_dot != nullptr);
    if (!computable) {
      fail(DF2_EUNSUPPORTED, format("tensor '%s' has type %s, which the CPU cannot multiply with", name.c_str(),
                                    ggml_type_name(info.type)));
    }
    ggml_tensor *packed = use == kProduct ? pack_later(info) : nullptr;
    return packed != nullptr ? packed : create(info, 2);
  }

  // For products with a matrix that rows are also read from.
  ggml_tensor *product_copy(ggml_tensor *matrix) {
    for (const TensorInfo &info : file_.tensors()) {
      if (info.name == matrix->name) {
        ggml_tensor *packed = pack_later(info);
        return packed != nullptr ? packed : matrix;
      }
    }
    return matrix;
  }

  // Fills the matrices that are packed, and lets go of their part of the file unless it is looked up. Null: there are
  // none.
  ggml_backend_buffer_t pack(const MappedFile &map) {
    if (to_pack_.empty()) {
      return nullptr;
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(packed_context_, packed_type_);
    if (buffer == nullptr) {
      fail(DF2_ENOMEM, "out of memory for packed weights; load the drafter with kernels off");
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto &[tensor, info] : to_pack_) {
      ggml_backend_tensor_set(tensor, info->data, 0, info->size_bytes);
      map.forget(info->data, info->size_bytes);
    }
    return buffer;
  }

  ggml_tensor *vector(const std::string &name, int64_t length) {
    const TensorInfo &info = take(name);
    check_shape(info, length, 1, 1);
    check_type(info, GGML_TYPE_F32);
    return create(info, 1);
  }

  ggml_tensor *optional_vector(const std::string &name, int64_t length) {
    return has(name) ? vector(name, length) : nullptr;
  }

  ggml_tensor *conv_base(const std::string &name, const DrafterParams &params) {
    const TensorInfo &info = take(name);
    check_shape(info, params.n_embd, params.conv_kernel_size, 2);
    check_type(info, GGML_TYPE_F32);
    return create(info, 3);
  }

  // 64-bit token ids as an I32 tensor [1, length], which ggml can look rows up in.
  ggml_tensor *token_map(const std::string &name, int64_t length, int64_t n_vocab) {
    const TensorInfo &info = take(name);
    check_shape(info, length, 1, 1);
    check_type(info, GGML_TYPE_I64);
    const size_t n_bytes = static_cast<size_t>(length) * sizeof(int32_t);
    const ggml_init_params init = {/*.mem_size =*/2 * ggml_tensor_overhead() + n_bytes, /*.mem_buffer =*/nullptr,
                                   /*.no_alloc =*/false};
    map_context_.reset(ggml_init(init));
    if (map_context_ == nullptr) {
      fail(DF2_ENOMEM, "out of memory while loading the drafter");
    }
    ggml_tensor *map = ggml_new_tensor_2d(map_context_.get(), GGML_TYPE_I32, 1, length);
    const auto *ids = reinterpret_cast<const int64_t *>(info.data);
    for (int64_t i = 0; i < length; ++i) {
      if (ids[i] < 0 || ids[i] >= n_vocab) {
        fail(DF2_EFORMAT, format("%s maps draft token %lld to %lld, outside the vocabulary of %lld", name.c_str(),
                                 (long long)i, (long long)ids[i], (long long)n_vocab));
      }
      static_cast<int32_t *>(map->data)[i] = static_cast<int32_t>(ids[i]);
    }
    return map;
  }

  // The memory of token_map's tensor.
  ggml_context_ptr take_map_context() { return std::move(map_context_); }

  int64_t rows_of(const std::string &name) const { return unused_.at(name)->ne[1]; }

  // A tensor nobody asked for means the file is a variant this code would compute wrongly.
  void finish() const {
    if (!unused_.empty()) {
      fail(DF2_EUNSUPPORTED,
           format("tensor '%s' is not part of a DFlash drafter this version knows", unused_.begin()->first.c_str()));
    }
  }

  [[noreturn]] void fail(df2_status status, const std::string &problem) const {
    throw Error(status, format("'%s': %s", file_.path().c_str(), problem.c_str()));
  }

 private:
  const TensorInfo &take(const std::string &name) {
    const auto found = unused_.find(name);
    if (found == unused_.end()) {
      fail(DF2_EFORMAT, format("tensor '%s' is missing; the file has %zu tensors (convert the drafter again)",
                               name.c_str(), file_.tensors().size()));
    }
    const TensorInfo &info = *found->second;
    unused_.erase(found);
    return info;
  }

  void check_shape(const TensorInfo &info, int64_t ne0, int64_t ne1, int64_t ne2) const {
    if (info.ne[0] != ne0 || info.ne[1] != ne1 || info.ne[2] != ne2 || info.ne[3] != 1) {
      fail(DF2_EFORMAT, format("tensor '%s' has shape [%lld, %lld, %lld, %lld]; [%lld, %lld, %lld, 1] fits the other "
                               "sizes in the file",
                               info.name.c_str(), (long long)info.ne[0], (long long)info.ne[1], (long long)info.ne[2],
                               (long long)info.ne[3], (long long)ne0, (long long)ne1, (long long)ne2));
    }
  }

  void check_type(const TensorInfo &info, ggml_type type) const {
    if (info.type != type) {
      fail(DF2_EFORMAT, format("tensor '%s' has type %s; it must be %s", info.name.c_str(), ggml_type_name(info.type),
                               ggml_type_name(type)));
    }
  }

  ggml_tensor *create_in(ggml_context *context, const TensorInfo &info, int n_dims) {
    ggml_tensor *tensor = ggml_new_tensor(context, info.type, n_dims, info.ne);
    ggml_set_name(tensor, info.name.c_str());
    if (ggml_nbytes(tensor) != info.size_bytes) {
      fail(DF2_EFORMAT, format("tensor '%s' has an unexpected size", info.name.c_str()));
    }
    return tensor;
  }

  // Null if it cannot be packed.
  ggml_tensor *pack_later(const TensorInfo &info) {
    if (packed_type_ == nullptr || !can_multiply_in(packed_type_, info)) {
      return nullptr;
    }
    ggml_tensor *tensor = create_in(packed_context_, info, 2);
    to_pack_.emplace_back(tensor, &info);
    return tensor;
  }

  ggml_tensor *create(const TensorInfo &info, int n_dims) {
    ggml_tensor *tensor = create_in(context_, info, n_dims);
    if (ggml_backend_tensor_alloc(buffer_, tensor, const_cast<uint8_t *>(info.data)) != GGML_STATUS_SUCCESS) {
      fail(DF2_EBACKEND, format("tensor '%s' cannot be placed in memory", info.name.c_str()));
    }
    return tensor;
  }

  const GgufFile &file_;
  ggml_context *context_;
  ggml_backend_buffer_t buffer_;
  ggml_context *packed_context_;
  ggml_backend_buffer_type_t packed_type_;
  ggml_context_ptr map_context_;
  std::map<std::string, const TensorInfo *> unused_;
  std::vector<std::pair<ggml_tensor *, const TensorInfo *>> to_pack_;
};

DrafterLayer load_layer(TensorLoader &loader, const DrafterParams &params, int32_t index) {
  const std::string prefix = format("blk.%d.", index);
  const int64_t n_embd = params.n_embd;
  const int64_t n_q = static_cast<int64_t>(params.head_dim) * params.n_head;
  const int64_t n_kv = static_cast<int64_t>(params.head_dim) * params.n_head_kv;
  if (!loader.has(prefix + "attn_v.weight")) {
    loader.fail(DF2_EUNSUPPORTED, format("layer %d has no attn_v.weight; K/V sharing is not supported", index));
  }
  DrafterLayer layer = {};
  layer.attn_norm = loader.vector(prefix + "attn_norm.weight", n_embd);
  layer.attn_q = loader.matrix(prefix + "attn_q.weight", n_embd, n_q);
  layer.attn_k = loader.matrix(prefix + "attn_k.weight", n_embd, n_kv);
  layer.attn_v = loader.matrix(prefix + "attn_v.weight", n_embd, n_kv);
  layer.attn_output = loader.matrix(prefix + "attn_output.weight", n_q, n_embd);
  layer.attn_q_norm = loader.vector(prefix + "attn_q_norm.weight", params.head_dim);
  layer.attn_k_norm = loader.vector(prefix + "attn_k_norm.weight", params.head_dim);
  layer.attn_sinks = loader.optional_vector(prefix + "attn_sinks.weight", params.n_head);
  layer.attn_post_norm = loader.optional_vector(prefix + "post_attention_norm.weight", n_embd);
  layer.ffn_norm = loader.vector(prefix + "ffn_norm.weight", n_embd);
  layer.ffn_gate = loader.matrix(prefix + "ffn_gate.weight", n_embd, params.n_ff);
  layer.ffn_up = loader.matrix(prefix + "ffn_up.weight", n_embd, params.n_ff);
  layer.ffn_down = loader.matrix(prefix + "ffn_down.weight", params.n_ff, n_embd);
  layer.ffn_post_norm = loader.optional_vector(prefix + "post_ffw_norm.weight", n_embd);
  layer.out_scale = loader.optional_vector(prefix + "layer_output_scale.weight", 1);
  if (params.version == 2) {
    const int64_t n_coefficients =
        2 * static_cast<int64_t>(params.conv_kernel_size) * (params.n_embd / params.conv_group_size);
    layer.attn_conv_base = loader.conv_base(prefix + "attn_conv_base", params);
    layer.attn_conv_proj = loader.matrix(prefix + "attn_conv_proj.weight", n_embd, n_coefficients);
    layer.ffn_conv_base = loader.conv_base(prefix + "ffn_conv_base", params);
    layer.ffn_conv_proj = loader.matrix(prefix + "ffn_conv_proj.weight", n_embd, n_coefficients);
  }
  return layer;
}

// The drafter's own embeddings and head, where it has them. Sets params->n_vocab_draft.
void load_vocabulary(TensorLoader &loader, DrafterParams *params, DrafterWeights *weights) {
  if (loader.has("token_embd.weight")) {
    weights->token_embd = loader.matrix("token_embd.weight", params->n_embd, params->n_vocab, kLookUp);
  }
  if (loader.has("output.weight")) {
    const int64_t rows = loader.rows_of("output.weight");
    if (rows < 1 || rows > params->n_vocab) {
      loader.fail(DF2_EFORMAT, format("output.weight has %lld rows for a vocabulary of %d",
                                      static_cast<long long>(rows), params->n_vocab));
    }
    weights->output = loader.matrix("output.weight", params->n_embd, rows);
  } else if (weights->token_embd != nullptr) {
    weights->output = loader.product_copy(weights->token_embd);
  }
  params->n_vocab_draft = weights->output != nullptr ? static_cast<int32_t>(weights->output->ne[1]) : 0;
  if (loader.has("d2t")) {
    weights->draft_to_target = loader.token_map("d2t", params->n_vocab_draft, params->n_vocab);
  } else if (weights->output != nullptr && params->n_vocab_draft != params->n_vocab) {
    loader.fail(DF2_EFORMAT, "a reduced output.weight needs a d2t tensor");
  }
}

DrafterWeights load_weights(TensorLoader &loader, DrafterParams *params) {
  DrafterWeights weights = {};
  const int64_t n_embd = params->n_embd;
  const int64_t n_features = static_cast<int64_t>(params->taps.size()) * params->n_embd_target;
  weights.fc = loader.matrix("fc.weight", n_features, n_embd);
  weights.fc_norm = loader.vector("enc.output_norm.weight", n_embd);
  weights.output_norm = loader.vector("output_norm.weight", n_embd);
  weights.rope_freqs = loader.optional_vector("rope_freqs.weight", params->head_dim / 2);
  load_vocabulary(loader, params, &weights);
  if (params->version == 2) {
    const int32_t n_choices = params->n_vocab_draft > 0 ? params->n_vocab_draft : params->n_vocab;
    if (params->selector_top_k > n_choices) {
      loader.fail(DF2_EFORMAT,
                  format("%d candidates cannot be chosen from a vocabulary of %d", params->selector_top_k, n_choices));
    }
    weights.selector_hidden = loader.matrix("selector_hidden.weight", n_embd, params->selector_rank);
    weights.selector_predecessor =
        loader.matrix("selector_predecessor.weight", params->selector_rank, params->n_vocab, kLookUp);
    weights.selector_successor =
        loader.matrix("selector_successor.weight", params->selector_rank, params->n_vocab, kLookUp);
  }
  for (int32_t i = 0; i < params->n_layer; ++i) {
    weights.layers.push_back(load_layer(loader, *params, i));
  }
  loader.finish();
  return weights;
}

}  // namespace

size_t Drafter::packed_bytes() const {
  return packed_buffer_ != nullptr ? ggml_backend_buffer_get_size(packed_buffer_.get()) : 0;
}

Drafter::Drafter(const std::string &path, ggml_backend_buffer_type_t packed_type, bool with_kernels)
    : path_(path), with_kernels_(with_kernels) {
  const GgufFile file(path);
  params_ = read_drafter_params(file);
  map_ = file.map();
  weights_bytes_ = file.data_bytes();
  for (const TensorInfo &tensor : file.tensors()) {
    if (reinterpret_cast<uintptr_t>(tensor.data) % 32 != 0) {
      throw Error(DF2_EFORMAT, format("'%s': tensor data is aligned to less than 32 bytes; convert the drafter again",
                                      path.c_str()));
    }
  }
  const ggml_init_params init = {/*.mem_size =*/ggml_tensor_overhead() * (file.tensors().size() + 1),
                                 /*.mem_buffer =*/nullptr, /*.no_alloc =*/true};
  context_.reset(ggml_init(init));
  packed_context_.reset(ggml_init(init));
  buffer_.reset(ggml_backend_cpu_buffer_from_ptr(const_cast<uint8_t *>(map_->data()), map_->size()));
  if (context_ == nullptr || packed_context_ == nullptr || buffer_ == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
  }
  ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  TensorLoader loader(file, context_.get(), buffer_.get(), packed_context_.get(), packed_type);
  weights_ = load_weights(loader, &params_);
  map_context_ = loader.take_map_context();
  packed_buffer_.reset(loader.pack(*map_));
  const std::vector<const char *> tokens = file.texts("tokenizer.ggml.tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    token_hashes_.push_back(token_hash(tokens[i], static_cast<int32_t>(i)));
  }
}

}  // namespace df2
