// The drafter's K/V cache. Its size follows from the drafter's window, never from the target's context.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "drafter/drafter.h"
#include "drafter/slot_ring.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace df2 {

// Layers with the drafter's own sliding window, and layers that attend to everything (and get the session's window).
enum LayerKind { kWindowed = 0, kFull = 1, kLayerKinds = 2 };

struct CacheLayer {
  LayerKind kind;
  ggml_tensor *k;  // [head_dim * n_head_kv, capacity + 1]: one row per slot, the last one for padding rows
  ggml_tensor *v;
};

class DrafterCache {
 public:
  // full_window: context tokens that layers without a window attend to. Throws DF2_EINVAL if the type's blocks do not
  // fit the heads, DF2_ENOMEM.
  DrafterCache(const DrafterParams &params, int32_t full_window, ggml_type type, ggml_backend_t backend);

  bool has(LayerKind kind) const { return rings_[kind] != nullptr; }
  const SlotRing &ring(LayerKind kind) const { return *rings_[kind]; }
  const std::vector<CacheLayer> &layers() const { return layers_; }

  // The largest capacity of any layer: how many of the newest positions are worth injecting.
  int32_t capacity() const;

  void insert(int32_t position);
  void rewind(int32_t position);

  size_t size_bytes() const;

 private:
  std::unique_ptr<SlotRing> rings_[kLayerKinds];
  std::vector<CacheLayer> layers_;
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
};

}  // namespace df2
