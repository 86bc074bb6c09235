#include "cpu_backend/kept_inputs.h"

#include <algorithm>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "cpu_backend/kernel_table.h"
#include "cpu_backend/own_rows.h"

namespace df2 {

namespace {

// Read when a graph is planned, on the thread that computes it.
thread_local KeptInputs *current_inputs = nullptr;

const ggml_tensor *root_of(const ggml_tensor *tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

// One thread that has a node's work area to itself.
ggml_compute_params alone(std::vector<uint8_t> *work) {
  return {0, 1, work->size(), work->data(), nullptr, false};
}

}  // namespace

struct KeptLayer::Claims {
  KeptClaim rows = {{Claim::kMagic, &rules::delta_net()}, nullptr};
  KeptClaim update = rows;
  KeptClaim store = rows;
};

DeltaInputs::DeltaInputs(const DeltaNode &like, int64_t n_tokens)
    : size_(like.params.size),
      gate_size_(like.params.gate_is_vector ? size_ : 1),
      n_heads_(like.n_heads),
      n_key_heads_(like.n_key_heads),
      stride_(n_key_heads_ * size_ + n_heads_ * (size_ + gate_size_ + 1)),
      values_(static_cast<size_t>(n_tokens * stride_)) {}

void DeltaInputs::copy(const DeltaNode &node, int64_t first, int64_t n, const ggml_compute_params &params) {
  const auto put = [](const float *place, const float *from, int64_t n_floats) {
    std::memcpy(const_cast<float *>(place), from, static_cast<size_t>(n_floats) * sizeof(float));
  };
  const df2_range share = df2_split(n * n_heads_, params.ith, params.nth);
  for (int64_t i = share.begin; i < share.end; ++i) {
    const int64_t at = i / n_heads_;
    const int64_t head = i % n_heads_;
    const df2_delta_token token = node.token(first + at, head, 0);
    if (head < n_key_heads_) {
      put(key(at, head), token.key, size_);
    }
    put(value(at, head), token.value, size_);
    put(gate(at, head), token.gate, gate_size_);
    put(beta(at, head), &token.beta, 1);
  }
}

df2_delta_token DeltaInputs::token(int64_t at, int64_t head) const {
  return {nullptr, key(at, head % n_key_heads_), value(at, head), gate(at, head), *beta(at, head), nullptr};
}

KeptLayer::KeptLayer(const ggml_tensor *cache, const DeltaNode &like)
    : cache_(cache),
      params_(like.params),
      n_heads_(like.n_heads),
      n_key_heads_(like.n_key_heads),
      state_floats_(like.state_floats()),
      n_planes_(like.n_planes),
      n_cells_(cache->ne[1] / like.n_planes),
      states_(static_cast<float *>(cache->data)),
      scratch_(DeltaWork::bytes(params_.size, n_planes_, 1)),
      next_(like, n_planes_ - 1),
      kept_(like, n_planes_ - 1) {
  claims_->rows.layer = claims_->update.layer = claims_->store.layer = this;
}

KeptLayer::~KeptLayer() = default;

bool KeptLayer::is_like(const DeltaNode &node) const {
  return node.n_sequences == 1 && node.params.size == params_.size && node.n_heads == n_heads_ &&
         node.n_key_heads == n_key_heads_ && node.params.gate_is_vector == params_.gate_is_vector &&
         node.n_planes == n_planes_;
}

void KeptLayer::begin_plan() {
  rows_ = nullptr;
  update_ = nullptr;
  is_deferred_ = false;
  is_updated_ = false;
}

const Claim *KeptLayer::claim_rows(const ggml_tensor *op) {
  begin_plan();
  rows_ = op;
  return &claims_->rows;
}

const Claim *KeptLayer::claim_update(const ggml_tensor *op) {
  if (!is_like(DeltaNode(op)) || ggml_nelements(rows_) != state_floats_) {
    return nullptr;
  }
  update_ = op;
  return &claims_->update;
}

const Claim *KeptLayer::claim_store(const ggml_tensor *op) {
  const ggml_tensor *from = op->src[0];
  const ggml_tensor *to = op->src[1];
  const auto row_bytes = static_cast<size_t>(state_floats_) * sizeof(float);
  if (update_ == nullptr || is_updated_ || root_of(from) != update_ ||
      from->view_offs != DeltaNode(update_).output_bytes() || to->view_offs % row_bytes != 0) {
    return nullptr;
  }
  stored_cell_ = static_cast<int64_t>(to->view_offs / row_bytes);
  if (stored_cell_ >= n_cells_) {
    return nullptr;
  }
  is_deferred_ = true;
  return &claims_->store;
}

void KeptLayer::begin_update(int64_t asked_row) {
  const int64_t plane = asked_row / n_cells_;
  const bool is_kept = n_kept_ > 0 && asked_row % n_cells_ == cell_;
  from_ = is_kept ? base(cell_) : row(asked_row);
  n_replayed_ = is_kept ? std::max<int64_t>(0, n_kept_ - plane) : 0;
}

// The rows of a state, and the tokens of a layer, are shared out differently: all threads read what is kept while they
// write what is to be kept next.
void KeptLayer::update(const DeltaNode &node, const ggml_compute_params &params) {
  const DeltaWork work(params_.size, n_replayed_ + node.n_tokens, params);
  const int64_t n_next = std::min(node.n_tokens, n_planes_ - 1);
  const auto n_stored = static_cast<int32_t>(n_replayed_ + node.n_tokens - n_next);
  float *to = base(stored_cell_);
  const bool is_written = n_stored > 0 || from_ != to;
  for_own_rows(n_heads_, params_.size, params, [&](int64_t head, int32_t first_row, int32_t end_row) {
    df2_delta_token *tokens = work.tokens();
    for (int64_t i = 0; i < n_replayed_; ++i) {
      tokens[i] = kept_.token(i, head);
    }
    for (int64_t i = 0; i < node.n_tokens; ++i) {
      tokens[n_replayed_ + i] = node.token(i, head, 0);
    }
    const int64_t offset = head * node.head_floats();
    kernels_in_use().delta_net->run(is_written ? to + offset : nullptr, from_ + offset, &params_, tokens,
                                    static_cast<int32_t>(n_replayed_ + node.n_tokens), n_stored, first_row, end_row,
                                    work.workspace());
  });
  next_.copy(node, node.n_tokens - n_next, n_next, params);
  if (params.ith == 0) {
    n_next_ = n_next;
  }
}

void KeptLayer::end_update() {
  std::swap(kept_, next_);
  n_kept_ = n_next_;
  cell_ = stored_cell_;
}

const float *KeptLayer::native_row(int64_t asked_row) {
  if (n_kept_ > 0 && asked_row % n_cells_ == cell_) {
    settle(asked_row / n_cells_);
  }
  forget();
  return row(asked_row);
}

void KeptLayer::settle(int64_t plane) {
  const int64_t n_applied = n_kept_ - plane;
  float *to = row(plane * n_cells_ + cell_);
  if (n_kept_ == 0 || n_applied < 0 || to == base(cell_)) {
    return;
  }
  const DeltaWork work(params_.size, n_planes_, alone(&scratch_));
  for (int64_t head = 0; head < n_heads_; ++head) {
    for (int64_t i = 0; i < n_applied; ++i) {
      work.tokens()[i] = kept_.token(i, head);
    }
    const int64_t offset = head * params_.size * params_.size;
    kernels_in_use().delta_net->run(to + offset, base(cell_) + offset, &params_, work.tokens(),
                                    static_cast<int32_t>(n_applied), static_cast<int32_t>(n_applied), 0, params_.size,
                                    work.workspace());
  }
}

void KeptLayer::give_back_zeros() const {
#ifdef __linux__
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(row(n_cells_)) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(row((n_planes_ - 1) * n_cells_)) / page * page;
  if (begin < end) {
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);  // anonymous memory: zeros again
  }
#endif
}

KeptLayer *KeptInputs::layer_of(const ggml_tensor *tensor) const {
  const ggml_tensor *cache = root_of(tensor);
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [cache](const auto &layer) { return layer->cache() == cache; });
  return found != layers_.end() ? found->get() : nullptr;
}

void KeptInputs::begin_graphs() {
  for (const auto &layer : layers_) {
    layer->begin_plan();
  }
}

const Claim *KeptInputs::claim(const ggml_tensor *op) {
  if (op->op != GGML_OP_GATED_DELTA_NET) {
    KeptLayer *layer = layer_of(op->op == GGML_OP_CPY ? op : op->src[0]);
    return op->op == GGML_OP_CPY ? layer->claim_store(op) : layer->claim_rows(op);
  }
  const ggml_tensor *rows = root_of(op->src[5]);
  const auto found =
      std::find_if(layers_.begin(), layers_.end(), [rows](const auto &layer) { return layer->looked_up() == rows; });
  return found != layers_.end() ? (*found)->claim_update(op) : nullptr;
}

void KeptInputs::settle(int64_t first_plane, int64_t last_plane) {
  for (const auto &layer : layers_) {
    for (int64_t plane = first_plane; plane <= last_plane; ++plane) {
      layer->settle(plane);
    }
  }
}

void KeptInputs::forget() {
  for (const auto &layer : layers_) {
    layer->forget();
  }
}

bool KeptInputs::are_kept() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto &layer) { return layer->has_kept(); });
}

void KeptInputs::give_back_zeros() const {
  for (const auto &layer : layers_) {
    layer->give_back_zeros();
  }
}

KeptScope::KeptScope(KeptInputs *inputs) : before_(current_inputs) {
  current_inputs = inputs;
  if (inputs != nullptr) {
    inputs->begin_graphs();
  }
}

KeptScope::~KeptScope() {
  current_inputs = before_;
}

KeptInputs *current_kept_inputs() {
  return current_inputs;
}

}  // namespace df2
