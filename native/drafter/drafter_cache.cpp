#include "drafter/drafter_cache.h"

#include <algorithm>

#include "common/error.h"

namespace df2 {

namespace {
// Positions a rewind may drop without shortening the window; generous for a rejected block, small beside the window.
constexpr int32_t kSlack = 128;
}  // namespace

DrafterCache::DrafterCache(const DrafterParams &params, int32_t full_window, ggml_type type, ggml_backend_t backend) {
  const auto block_size = static_cast<int32_t>(ggml_blck_size(type));
  if (params.head_dim % block_size != 0) {
    throw Error(DF2_EINVAL, format("the drafter's heads have %d elements, but a cache of type %s holds blocks of %d; "
                                   "choose another cache_type, f16 if nothing else",
                                   params.head_dim, ggml_type_name(type), block_size));
  }
  const ggml_init_params init = {/*.mem_size =*/ggml_tensor_overhead() * (2 * static_cast<size_t>(params.n_layer) + 1),
                                 /*.mem_buffer =*/nullptr, /*.no_alloc =*/true};
  context_.reset(ggml_init(init));
  if (context_ == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory for the drafter's cache");
  }
  for (int32_t i = 0; i < params.n_layer; ++i) {
    const LayerKind kind = params.layer_has_window[static_cast<size_t>(i)] ? kWindowed : kFull;
    if (rings_[kind] == nullptr) {
      const int32_t window = kind == kWindowed ? params.window : full_window;
      rings_[kind] = std::make_unique<SlotRing>(window, params.block_size, kSlack);
    }
    const int64_t width = static_cast<int64_t>(params.head_dim) * params.n_head_kv;
    const int64_t rows = rings_[kind]->capacity() + 1;
    CacheLayer layer = {kind, ggml_new_tensor_2d(context_.get(), type, width, rows),
                        ggml_new_tensor_2d(context_.get(), type, width, rows)};
    layers_.push_back(layer);
  }
  buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), backend));
  if (buffer_ == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory for the drafter's cache; ask for a smaller window");
  }
  // unwritten rows are masked, but 0 * garbage must not become NaN
  ggml_backend_buffer_clear(buffer_.get(), 0);
}

int32_t DrafterCache::capacity() const {
  int32_t capacity = 0;
  for (const auto &ring : rings_) {
    capacity = std::max(capacity, ring != nullptr ? ring->capacity() : 0);
  }
  return capacity;
}

void DrafterCache::insert(int32_t position) {
  for (auto &ring : rings_) {
    if (ring != nullptr) {
      ring->insert(position);
    }
  }
}

void DrafterCache::rewind(int32_t position) {
  for (auto &ring : rings_) {
    if (ring != nullptr) {
      ring->rewind(position);
    }
  }
}

size_t DrafterCache::size_bytes() const {
  return ggml_backend_buffer_get_size(buffer_.get());
}

}  // namespace df2
