// A drafter at work on one sequence: its cache, its graphs, and the threads that compute them.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "drafter/drafter.h"
#include "drafter/drafter_cache.h"
#include "drafter/drafter_graph.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

struct ggml_threadpool;

namespace df2 {

struct RunnerOptions {
  int32_t full_window;   // context tokens that layers without a window of their own attend to
  ggml_type cache_type;  // of keys and values
  int32_t n_threads;
  ggml_threadpool *threadpool;  // the target's; null: ggml makes its own
};

// How the selector chooses.
struct Sampling {
  float temperature = 0.0f;         // 0: greedy
  const float *uniforms = nullptr;  // [n_draft] in [0, 1), for temperatures above 0
};

// A finished draft. Pointers live until the runner's next call.
struct Draft {
  int32_t n_draft;
  const int32_t *path;  // [n_draft]: the drafted tokens
  const float *path_q;  // [n_draft]: the probabilities they were chosen with; at temperature 1 if greedy
  bool has_numbers;     // whether every position has a best score
};

// What a draft was chosen from; k candidates per position. Pointers live until the runner's next call.
struct DraftDetails {
  int32_t n_candidates;
  int32_t n_vocab;            // columns of logits
  const int32_t *candidates;  // [n_draft][k]
  const float *scores;        // [n_draft][k]
  const float *q;             // [n_draft][k]: probabilities, as path_q
  const float *hidden;        // [n_draft + 1][n_embd]
  const float *logits;        // [n_draft][n_vocab]
};

class DrafterRunner {
 public:
  // shared: the target's embeddings and head; checked by the caller to fit the drafter.
  DrafterRunner(std::shared_ptr<const Drafter> drafter, const SharedWeights &shared, const RunnerOptions &options);
  ~DrafterRunner();

  const Drafter &drafter() const { return *drafter_; }

  // Gives the cache K and V for the tokens at position, position + 1, ...; features: [n_rows][n_features()].
  void inject(const float *features, int32_t n_rows, int32_t position);

  // The same for the pending rows, which end at position - 1, and a block of n_draft tokens after `anchor` at
  // `position`. All in one graph unless the pending rows are many.
  Draft draft(const float *pending, int32_t n_pending, int32_t anchor, int32_t position, int32_t n_draft,
              const Sampling &sampling = {});

  // Of the draft that the call before this one made. Apart from it, because logits are many and generating needs none.
  DraftDetails details();

  // Forgets every position >= position.
  void rewind(int32_t position) { cache_->rewind(position); }

  // Floats per feature row: taps times the target's width.
  int64_t n_features() const { return drafter_->weights().fc->ne[0]; }

  // Newest positions the cache can hold; injecting older ones is wasted work.
  int32_t capacity() const { return cache_->capacity(); }

  size_t cache_bytes() const { return cache_->size_bytes(); }
  size_t compute_bytes() const;

  // Time spent on building graphs so far, in microseconds: each shape is built when it first occurs.
  uint64_t build_us() const { return build_us_; }

 private:
  void reserve();
  void warm_up();
  DrafterGraph build(const GraphShape &shape) const;
  DrafterGraph &graph_for(const GraphShape &shape);
  GraphShape block_shape(int32_t n_pending, int32_t n_draft, bool is_sampled) const;
  void set_features(const DrafterGraph &graph, const float *features, int32_t n_rows);
  void set_rows(const DrafterGraph &graph, const GraphShape &shape, int32_t n_rows, int32_t position);
  void set_block(const DrafterGraph &graph, const GraphShape &shape, int32_t anchor, int32_t position);
  void set_sampling(const DrafterGraph &graph, const Sampling &sampling);
  void compute(const DrafterGraph &graph);
  bool has_numbers(const DrafterGraph &graph);

  // Results on the host.
  struct Results {
    std::vector<int32_t> path, candidates;
    std::vector<float> path_q, scores, q, hidden, logits;
  };

  std::shared_ptr<const Drafter> drafter_;
  SharedWeights shared_;
  ggml_backend_ptr backend_;
  std::unique_ptr<DrafterCache> cache_;
  ggml_gallocr_ptr allocator_;
  std::map<GraphShape, DrafterGraph> graphs_;
  const DrafterGraph *drafted_ = nullptr;  // the newest draft's
  Results results_;
  uint64_t build_us_ = 0;
};

}  // namespace df2
