// The recurrent states of delta nets, without a copy per token to go back to: what is kept is the state before the last
// decode, and the inputs of that decode's tokens. The next decode applies those that were accepted on its way through
// the state, which it reads and writes once. What llama.cpp copies for snapshots is left out.
//
// llama.cpp keeps several states of a sequence, in planes of a cache: plane p is to have the state before the last p
// tokens. Here the last plane has the state before the kept tokens, and the others are not touched until settle() makes
// one what llama.cpp thinks it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu_backend/delta_node.h"
#include "cpu_backend/kept_claims.h"
#include "cpu_backend/rule.h"

struct ggml_cgraph;

namespace df2 {

// What some tokens do to the states of a layer.
class DeltaInputs {
 public:
  // Room for tokens like those of a node. Throws std::bad_alloc.
  DeltaInputs(const DeltaNode &like, int64_t n_tokens);

  // One thread's share of copying n tokens of a node, from `first` on.
  void copy(const DeltaNode &node, int64_t first, int64_t n, const ggml_compute_params &params);
  // Without a query.
  df2_delta_token token(int64_t at, int64_t head) const;

 private:
  const float *key(int64_t at, int64_t head) const { return values_.data() + at * stride_ + head * size_; }
  const float *value(int64_t at, int64_t head) const { return key(at, n_key_heads_ + head); }
  const float *gate(int64_t at, int64_t head) const { return value(at, n_heads_) + head * gate_size_; }
  const float *beta(int64_t at, int64_t head) const { return gate(at, n_heads_) + head; }

  int64_t size_;
  int64_t gate_size_;
  int64_t n_heads_;
  int64_t n_key_heads_;
  int64_t stride_;
  std::vector<float> values_;  // [n_tokens][keys, values, gates, betas]
};

class KeptLayer;

// The claim of a node that is computed for a layer.
struct KeptClaim : Claim {
  KeptLayer *layer;
};

// A layer's states of the one sequence that its context decodes.
class KeptLayer {
 public:
  // cache: n_planes rows per cell. Throws std::bad_alloc.
  KeptLayer(const ggml_tensor *cache, const DeltaNode &like);
  ~KeptLayer();
  KeptLayer(const KeptLayer &) = delete;
  KeptLayer &operator=(const KeptLayer &) = delete;

  const ggml_tensor *cache() const { return cache_; }
  int64_t n_planes() const { return n_planes_; }
  const ggml_tensor *looked_up() const { return rows_; }

  // While a graph is planned: the look-up of a state, its update, the copy of the new states to the cache. Null if they
  // are not as they should be. Once all three are claimed the layer is deferred: the state is used where it lies.
  const Claim *claim_rows(const ggml_tensor *op);
  const Claim *claim_update(const ggml_tensor *op);
  const Claim *claim_store(const ggml_tensor *op);
  void begin_plan();
  bool is_deferred() const { return is_deferred_; }

  // While it is computed, by one thread, where the layer is not deferred: a row of the cache, which is what llama.cpp
  // thinks it is from now on. Nothing is kept any more.
  const float *native_row(int64_t asked_row);
  // By one thread, before and after the update. asked_row: of the cache.
  void begin_update(int64_t asked_row);
  void end_update();
  // By all threads, where the layer is deferred.
  void update(const DeltaNode &node, const ggml_compute_params &params);
  // By one thread, however the update was computed.
  void note_update() { is_updated_ = true; }

  // Makes a plane what llama.cpp thinks it is.
  void settle(int64_t plane);
  void forget() { n_kept_ = 0; }
  bool has_kept() const { return n_kept_ > 0; }
  // The cache has just been filled with zeros.
  void give_back_zeros() const;

 private:
  struct Claims;

  float *row(int64_t index) const { return states_ + index * state_floats_; }
  float *base(int64_t cell) const { return row((n_planes_ - 1) * n_cells_ + cell); }
  bool is_like(const DeltaNode &node) const;

  const ggml_tensor *cache_;
  df2_delta_params params_;
  int64_t n_heads_;
  int64_t n_key_heads_;
  int64_t state_floats_;
  int64_t n_planes_;
  int64_t n_cells_;
  float *states_;
  KeptClaims<Claims> claims_;
  std::vector<uint8_t> scratch_;

  // Of the graph that is being planned.
  const ggml_tensor *rows_ = nullptr;
  const ggml_tensor *update_ = nullptr;
  bool is_deferred_ = false;
  bool is_updated_ = false;
  int64_t stored_cell_ = 0;

  // Of the update that is being computed.
  const float *from_ = nullptr;
  int64_t n_replayed_ = 0;
  int64_t n_next_ = 0;
  DeltaInputs next_;  // n_next_ of them

  // What is kept: the inputs of n_kept_ tokens behind base(cell_).
  int64_t n_kept_ = 0;
  int64_t cell_ = 0;
  DeltaInputs kept_;
};

// All layers of a context. Used by one thread at a time, and by those that compute for it.
class KeptInputs {
 public:
  // Null unless all recurrent states of a context's graph are those of delta nets, in several planes, read and written
  // in the way that is known, and there are kernels for them. Throws std::bad_alloc.
  static std::unique_ptr<KeptInputs> find(ggml_cgraph *graph);

  // The layer whose cache a tensor is a view of; null: of none.
  KeptLayer *layer_of(const ggml_tensor *tensor) const;

  int64_t n_planes() const { return layers_.front()->n_planes(); }

  // Before and while graphs are planned; see KeptLayer.
  void begin_graphs();
  const Claim *claim(const ggml_tensor *op);

  // Makes some planes what llama.cpp thinks they are.
  void settle(int64_t first_plane, int64_t last_plane);
  // What is kept does not belong to what is in the caches.
  void forget();
  // Whether the inputs of the last decode are kept, which they are not where its graphs were cut.
  bool are_kept() const;
  // The caches have just been filled with zeros: memory that will not be touched goes back to the system.
  void give_back_zeros() const;

 private:
  std::vector<std::unique_ptr<KeptLayer>> layers_;
};

// While one exists, graphs that its thread computes keep inputs there. Null: none.
class KeptScope {
 public:
  explicit KeptScope(KeptInputs *inputs);
  ~KeptScope();
  KeptScope(const KeptScope &) = delete;
  KeptScope &operator=(const KeptScope &) = delete;

 private:
  KeptInputs *before_;
};

// Of this thread's scope.
KeptInputs *current_kept_inputs();

}  // namespace df2
