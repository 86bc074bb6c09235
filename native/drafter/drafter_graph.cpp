#include "drafter/drafter_graph.h"

#include <algorithm>

#include "common/error.h"

namespace df2 {

namespace {

class GraphBuilder {
 public:
  GraphBuilder(const Drafter &drafter, const DrafterCache &cache, const SharedWeights &shared, const GraphShape &shape,
               DrafterGraph *out)
      : params_(drafter.params()),
        weights_(drafter.weights()),
        ops_(*out->ops),
        cache_(cache),
        shared_(shared),
        shape_(shape),
        out_(out),
        ctx_(out->context.get()) {}

  void build() {
    create_inputs();
    ggml_tensor *injected = shape_.n_pending > 0 ? fused_features() : nullptr;
    if (shape_.n_block == 0) {
      inject(injected);
      return;
    }
    SublayerResult block = {block_embeddings(), nullptr};
    block.normed = ops_.norm(ctx_, block.sum, weights_.layers[0].attn_norm);
    for (int32_t i = 0; i < params_.n_layer; ++i) {
      block = layer(i, injected, block);
    }
    select(block.normed);
  }

 private:
  int64_t n_rows() const { return shape_.n_pending + shape_.n_block; }

  ggml_tensor *input(ggml_type type, int64_t ne0, int64_t ne1) {
    ggml_tensor *tensor = ggml_new_tensor_2d(ctx_, type, ne0, ne1);
    ggml_set_input(tensor);
    return tensor;
  }

  void create_inputs() {
    out_->positions = input(GGML_TYPE_I32, n_rows(), 1);
    if (shape_.n_pending > 0) {
      out_->features = input(GGML_TYPE_F32, weights_.fc->ne[0], shape_.n_pending);
    }
    if (shape_.n_block > 0) {
      out_->block_positions = input(GGML_TYPE_I32, shape_.n_block, 1);
      out_->block_tokens = input(GGML_TYPE_I32, shape_.n_block, 1);
      out_->sampling = shape_.is_sampled ? input(GGML_TYPE_F32, shape_.n_block, 1) : nullptr;
    }
    for (const LayerKind kind : {kWindowed, kFull}) {
      if (!cache_.has(kind)) {
        continue;
      }
      out_->slots[kind] = input(GGML_TYPE_I64, n_rows(), 1);
      if (shape_.n_block > 0) {
        out_->masks[kind] = input(GGML_TYPE_F16, shape_.n_kv[kind], shape_.n_block);
      }
    }
  }

  // Of heads, which rope follows.
  ggml_tensor *head_norm(ggml_tensor *x, ggml_tensor *weight) {
    return ggml_mul(ctx_, ggml_rms_norm(ctx_, x, params_.norm_eps), weight);
  }

  // g = rms_norm(fc . f) * hidden_norm
  ggml_tensor *fused_features() {
    return ops_.norm(ctx_, ggml_mul_mat(ctx_, weights_.fc, out_->features), weights_.fc_norm);
  }

  ggml_tensor *block_embeddings() {
    const bool is_shared = weights_.token_embd == nullptr;
    ggml_tensor *x = ggml_get_rows(ctx_, is_shared ? shared_.token_embd : weights_.token_embd, out_->block_tokens);
    // where the file states nothing, what the drafter was trained on is what the target makes of its embeddings
    const float unstated = is_shared ? shared_.embedding_scale : 1.0f;
    const float scale = params_.embedding_scale != 0.0f ? params_.embedding_scale : unstated;
    return scale != 1.0f ? ggml_scale(ctx_, x, scale) : x;
  }

  ggml_tensor *rope(ggml_tensor *x, ggml_tensor *positions) {
    const RopeParams &r = params_.rope;
    return ggml_rope_ext(ctx_, x, positions, weights_.rope_freqs, r.n_dims, GGML_ROPE_TYPE_NEOX, r.n_ctx_original,
                         r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
  }

  ggml_tensor *add_bias(ggml_tensor *x, ggml_tensor *bias) { return bias != nullptr ? ggml_add(ctx_, x, bias) : x; }

  // Writes K and V of all rows into the cache; what comes back are the caches as they are afterwards.
  void write_cache(int32_t index, ggml_tensor *rows, ggml_tensor **k_cache, ggml_tensor **v_cache) {
    const DrafterLayer &layer = weights_.layers[static_cast<size_t>(index)];
    const CacheLayer &cache = cache_.layers()[static_cast<size_t>(index)];
    ggml_tensor *k = add_bias(ggml_mul_mat(ctx_, layer.attn_k, rows), layer.attn_k_bias);
    k = head_norm(ggml_reshape_3d(ctx_, k, params_.head_dim, params_.n_head_kv, n_rows()), layer.attn_k_norm);
    k = rope(k, out_->positions);
    k = ggml_reshape_2d(ctx_, k, cache.k->ne[0], n_rows());
    ggml_tensor *v = add_bias(ggml_mul_mat(ctx_, layer.attn_v, rows), layer.attn_v_bias);
    *k_cache = ggml_set_rows(ctx_, cache.k, k, out_->slots[cache.kind]);
    *v_cache = ggml_set_rows(ctx_, cache.v, v, out_->slots[cache.kind]);
  }

  // The first n_kv slots as [head_dim, n_kv, n_head_kv].
  ggml_tensor *heads_view(ggml_tensor *cache, int64_t n_kv) {
    const size_t head_bytes = ggml_row_size(cache->type, params_.head_dim);
    return ggml_view_3d(ctx_, cache, params_.head_dim, n_kv, params_.n_head_kv, cache->nb[1], head_bytes, 0);
  }

  ggml_tensor *attention(int32_t index, ggml_tensor *x, ggml_tensor *k_cache, ggml_tensor *v_cache) {
    const DrafterLayer &layer = weights_.layers[static_cast<size_t>(index)];
    const LayerKind kind = cache_.layers()[static_cast<size_t>(index)].kind;
    ggml_tensor *q = add_bias(ggml_mul_mat(ctx_, layer.attn_q, x), layer.attn_q_bias);
    q = head_norm(ggml_reshape_3d(ctx_, q, params_.head_dim, params_.n_head, shape_.n_block), layer.attn_q_norm);
    q = ggml_permute(ctx_, rope(q, out_->block_positions), 0, 2, 1, 3);
    ggml_tensor *k = heads_view(k_cache, shape_.n_kv[kind]);
    ggml_tensor *v = heads_view(v_cache, shape_.n_kv[kind]);
    ggml_tensor *y = ggml_flash_attn_ext(ctx_, q, k, v, out_->masks[kind], params_.attn_scale, 0.0f, 0.0f);
    if (layer.attn_sinks != nullptr) {
      ggml_flash_attn_ext_add_sinks(y, layer.attn_sinks);
    }
    y = ggml_reshape_2d(ctx_, y, static_cast<int64_t>(params_.head_dim) * params_.n_head, shape_.n_block);
    y = ggml_mul_mat(ctx_, layer.attn_output, y);
    y = params_.value_scale != 1.0f ? ggml_scale(ctx_, y, params_.value_scale) : y;
    return add_bias(y, layer.attn_output_bias);  // the scale is that of the values
  }

  ggml_tensor *feed_forward(const DrafterLayer &layer, ggml_tensor *x) {
    ggml_tensor *gate = ggml_mul_mat(ctx_, layer.ffn_gate, x);
    ggml_tensor *up = ggml_mul_mat(ctx_, layer.ffn_up, x);
    ggml_tensor *y = params_.gelu ? ggml_geglu_split(ctx_, gate, up) : ggml_swiglu_split(ctx_, gate, up);
    return ggml_mul_mat(ctx_, layer.ffn_down, y);
  }

  void inject(ggml_tensor *injected) {
    for (int32_t i = 0; i < params_.n_layer; ++i) {
      ggml_tensor *k_cache = nullptr;
      ggml_tensor *v_cache = nullptr;
      write_cache(i, injected, &k_cache, &v_cache);
      ggml_build_forward_expand(out_->graph, k_cache);
      ggml_build_forward_expand(out_->graph, v_cache);
    }
  }

  // The norm behind layer `index`: the next one's, or the output's.
  ggml_tensor *next_norm(int32_t index) const {
    const auto next = static_cast<size_t>(index) + 1;
    return next < weights_.layers.size() ? weights_.layers[next].attn_norm : weights_.output_norm;
  }

  // One drafter layer. `block` is its input and its input normed. Both sublayers' convolutions take their coefficients,
  // in and out, from the normed input.
  SublayerResult layer(int32_t index, ggml_tensor *injected, const SublayerResult &block) {
    const DrafterLayer &layer = weights_.layers[static_cast<size_t>(index)];
    ggml_tensor *x = block.normed;
    ConvWeights conv = conv_weights(layer.attn_conv_base, layer.attn_conv_proj, x);
    x = conv.base != nullptr ? ops_.convolve_in(ctx_, x, conv) : x;
    ggml_tensor *k_cache = nullptr;
    ggml_tensor *v_cache = nullptr;
    write_cache(index, injected != nullptr ? ggml_concat(ctx_, injected, x, 1) : x, &k_cache, &v_cache);
    x = attention(index, x, k_cache, v_cache);
    const SublayerResult middle =
        ops_.finish(ctx_, x, conv, {block.sum, layer.attn_post_norm, nullptr, layer.ffn_norm});

    x = middle.normed;
    conv = conv_weights(layer.ffn_conv_base, layer.ffn_conv_proj, x);
    x = conv.base != nullptr ? ops_.convolve_in(ctx_, x, conv) : x;
    x = feed_forward(layer, x);
    return ops_.finish(ctx_, x, conv, {middle.sum, layer.ffn_post_norm, layer.out_scale, next_norm(index)});
  }

  ConvWeights conv_weights(ggml_tensor *base, ggml_tensor *projection, ggml_tensor *x) {
    return {base, base != nullptr ? ggml_mul_mat(ctx_, projection, x) : nullptr};
  }

  // Rows 1 and up of a block's tensor.
  ggml_tensor *without_anchor(ggml_tensor *rows) {
    return ggml_view_2d(ctx_, rows, rows->ne[0], rows->ne[1] - 1, rows->nb[1], rows->nb[1]);
  }

  void select(ggml_tensor *hidden) {
    out_->hidden = hidden;
    ggml_set_output(out_->hidden);
    // the anchor's own row predicts nothing
    ggml_tensor *drafted = without_anchor(out_->hidden);
    ggml_tensor *head = weights_.output != nullptr ? weights_.output : shared_.head;
    ggml_tensor *logits = ggml_mul_mat(ctx_, head, drafted);
    if (head == shared_.head && shared_.head_bias != nullptr) {
      logits = ggml_add(ctx_, logits, shared_.head_bias);
    }
    if (params_.logit_scale != 0.0f && params_.logit_scale != 1.0f) {
      logits = ggml_scale(ctx_, logits, params_.logit_scale);
    }
    if (params_.logit_softcap > 0.0f) {
      logits = ggml_tanh(ctx_, ggml_scale(ctx_, logits, 1.0f / params_.logit_softcap));
      logits = ggml_scale(ctx_, logits, params_.logit_softcap);
    }
    out_->logits = logits;
    ggml_set_output(out_->logits);
    ggml_tensor *gate = params_.version == 2 ? ggml_mul_mat(ctx_, weights_.selector_hidden, drafted) : nullptr;
    out_->selection = ops_.select(ctx_, {logits, gate, out_->block_tokens, out_->sampling});
    const Selection &s = out_->selection;
    for (ggml_tensor *tensor : {s.path, s.candidates, s.scores, s.q, s.path_q}) {
      // what a view shows must not be overwritten either; the allocator looks at the tensor behind it
      ggml_set_output(tensor->view_src != nullptr ? tensor->view_src : tensor);
      ggml_build_forward_expand(out_->graph, tensor);
    }
  }

  const DrafterParams &params_;
  const DrafterWeights &weights_;
  DrafterOps &ops_;
  const DrafterCache &cache_;
  const SharedWeights &shared_;
  const GraphShape &shape_;
  DrafterGraph *out_;
  ggml_context *ctx_;
};

}  // namespace

DrafterGraph build_drafter_graph(const Drafter &drafter, ggml_backend_dev_t device, const DrafterCache &cache,
                                 const SharedWeights &shared, const GraphShape &shape) {
  DrafterGraph out;
  out.ops = ops_for(device, drafter);
  // besides the operations, about 40 tensors per layer; the rest is inputs and features
  const size_t n_nodes = 64 + 48 * static_cast<size_t>(drafter.params().n_layer) + out.ops->max_tensors(shape.n_block);
  const ggml_init_params init = {
      /*.mem_size =*/ggml_tensor_overhead() * n_nodes + ggml_graph_overhead_custom(n_nodes, false),
      /*.mem_buffer =*/nullptr, /*.no_alloc =*/true};
  out.context.reset(ggml_init(init));
  if (out.context == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory for a drafter graph");
  }
  out.graph = ggml_new_graph_custom(out.context.get(), n_nodes, false);
  GraphBuilder(drafter, cache, shared, shape, &out).build();
  return out;
}

}  // namespace df2
