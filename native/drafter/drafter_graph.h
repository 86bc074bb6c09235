// The drafter as one ggml graph: pending features in, drafted tokens out.
#pragma once

#include <memory>
#include <tuple>

#include "common/shared_weights.h"
#include "drafter/drafter.h"
#include "drafter/drafter_cache.h"
#include "drafter/drafter_ops.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace df2 {

// What one graph is built for. Graphs are cached per shape.
struct GraphShape {
  int32_t n_pending;          // feature rows to inject, padding included
  int32_t n_block;            // anchor and drafted positions; 0: injection only
  int32_t n_kv[kLayerKinds];  // cache slots the block attends to, per kind of layer
  bool is_sampled;            // the selector draws its candidates

  bool operator<(const GraphShape &other) const { return key() < other.key(); }

 private:
  std::tuple<int32_t, int32_t, int32_t, int32_t, bool> key() const {
    return {n_pending, n_block, n_kv[kWindowed], n_kv[kFull], is_sampled};
  }
};

struct DrafterGraph {
  std::unique_ptr<DrafterOps> ops;  // what its nodes refer to
  ggml_context_ptr context;
  ggml_cgraph *graph = nullptr;

  // Inputs. Rows are the pending features first, then the block. Null where the shape has no use for them.
  ggml_tensor *features = nullptr;         // F32 [n_taps * n_embd_target, n_pending]
  ggml_tensor *positions = nullptr;        // I32 [n_pending + n_block]
  ggml_tensor *block_positions = nullptr;  // I32 [n_block]
  ggml_tensor *block_tokens = nullptr;     // I32 [n_block]
  ggml_tensor *slots[kLayerKinds] = {};    // I64 [n_pending + n_block]
  ggml_tensor *masks[kLayerKinds] = {};    // F16 [n_kv, n_block], 0 or -infinity
  ggml_tensor *sampling = nullptr;         // F32 [n_block]: temperature, then a uniform number per drafted position

  // Outputs, for n_block > 0.
  ggml_tensor *hidden = nullptr;  // F32 [n_embd, n_block]
  ggml_tensor *logits = nullptr;  // F32 [n_vocab, n_block - 1]
  Selection selection = {};       // of n_block - 1 positions
};

// Builds, and does not allocate, the graph of a shape for a device. What is passed must outlive it.
DrafterGraph build_drafter_graph(const Drafter &drafter, ggml_backend_dev_t device, const DrafterCache &cache,
                                 const SharedWeights &shared, const GraphShape &shape);

}  // namespace df2
