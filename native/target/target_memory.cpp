#include "target/target_memory.h"

#include <algorithm>
#include <limits>

#include "common/error.h"
#include "cpu_backend/kept_inputs.h"
#include "llama.h"
#include "target/architectures.h"
#include "target/target_graph.h"

namespace df2 {

namespace {

// Statuses of llama_decode after which the memory holds what it held before: refused, and no room.
bool is_untouched(int32_t status) {
  return status == -1 || status == 1;
}

// Attention alone: any end of the sequence can be cut off, but where a sliding window's cache has dropped what would be
// seen again. There a micro-batch takes the place of keys that its first token does not see, so that one can be undone.
class Truncation final : public TargetMemory {
 public:
  explicit Truncation(llama_context *context)
      : memory_(llama_get_memory(context)),
        n_swa_(llama_model_n_swa(llama_get_model(context))),
        n_ubatch_(static_cast<int32_t>(llama_n_ubatch(context))) {}

  void mark(bool /*is_needed*/) override {}

  int32_t go_back(int32_t n_kept) override {
    return can_continue_at(n_kept) && llama_memory_seq_rm(memory_, 0, n_kept, -1) ? n_kept : kCannot;
  }

  int32_t max_rows() const override { return n_swa_ > 0 ? n_ubatch_ : std::numeric_limits<int32_t>::max(); }

  void decoded(int32_t n_held, int32_t n_rows, int32_t status) override {
    if (!is_untouched(status)) {
      undoable_ = n_rows <= n_ubatch_ ? n_held : n_held + n_rows;
    }
  }

  void cleared() override { undoable_ = 0; }

 private:
  bool can_continue_at(int32_t position) const {
    if (n_swa_ <= 0 || position == 0 || position >= undoable_) {
      return true;
    }
    const int32_t oldest = llama_memory_seq_pos_min(memory_, 0);
    return oldest >= 0 && oldest <= std::max(0, position - n_swa_ + 1);
  }

  llama_memory_t memory_;
  int32_t n_swa_;
  int32_t n_ubatch_;
  int32_t undoable_ = 0;  // tokens held before the last decode, if it was one micro-batch
};

// llama.cpp keeps the states before the last rows it decoded (llama_context_params.n_rs_seq). It says yes to more than
// it has: to all rows of a decode, or to a second step back; and what its own cleaning up after a failed decode leaves
// behind is a state of nothing. Where it can be asked but once, it is asked when the next decode is due.
//
// Kept inputs take the place of its largest snapshots, and know the state before all rows. Those of convolutions
// remain, and mostly do so too.
class Snapshots final : public TargetMemory {
 public:
  Snapshots(llama_context *context, std::unique_ptr<KeptInputs> inputs)
      : memory_(llama_get_memory(context)),
        n_snapshots_(static_cast<int32_t>(llama_n_rs_seq(context))),
        n_ubatch_(static_cast<int32_t>(llama_n_ubatch(context))),
        inputs_(std::move(inputs)),
        knows_before_(inputs_ != nullptr && convolutions_know_before(architecture_of(llama_get_model(context)))) {}

  void mark(bool /*is_needed*/) override { cut(); }

  int32_t go_back(int32_t n_kept) override {
    if (n_kept == n_held_) {
      return n_held_;
    }
    if (n_kept == 0) {
      llama_memory_seq_rm(memory_, 0, 0, -1);
      replaced(0);
      return llama_memory_seq_pos_max(memory_, 0) == -1 ? 0 : kLost;
    }
    if (n_decoded_ - n_kept > n_droppable_) {
      return kCannot;
    }
    n_held_ = n_kept;
    return n_held_;
  }

  int32_t n_positions(int32_t n_held) const override {
    return n_held == n_held_ && n_droppable_ > 0 ? n_decoded_ : n_held;
  }

  int32_t max_rows() const override { return std::min(n_snapshots_ + 1, n_ubatch_); }

  uint64_t bytes(uint64_t state_bytes) const override {
    const auto n_snapshots = static_cast<uint64_t>(n_snapshots_);
    return state_bytes / (1 + n_snapshots) * n_snapshots;
  }

  void decoded(int32_t n_held, int32_t n_rows, int32_t status) override {
    if (is_untouched(status)) {
      return;
    }
    n_held_ = n_decoded_ = n_held + n_rows;
    const int32_t n_known = knows_before_ && inputs_->are_kept() ? n_rows : n_rows - 1;
    n_droppable_ = status == 0 && n_rows <= n_ubatch_ ? std::min(n_known, n_snapshots_) : 0;
  }

  void cleared() override {
    replaced(0);
    if (inputs_ != nullptr) {
      inputs_->give_back_zeros();
    }
  }

  void settle() override {
    cut();
    if (inputs_ != nullptr) {
      inputs_->settle(n_decoded_ - n_held_, n_decoded_ - n_held_);
    }
  }

  void replaced(int32_t n_held) override {
    n_held_ = n_decoded_ = n_held;
    n_droppable_ = 0;
    if (inputs_ != nullptr) {
      inputs_->forget();
    }
  }

  // Whoever has the context next may go back as llama.cpp lets him.
  void release() override {
    settle();
    if (inputs_ != nullptr) {
      inputs_->settle(1, n_droppable_);
      inputs_->forget();
    }
  }

  KeptInputs *kept_inputs() override { return inputs_.get(); }

 private:
  // Afterwards, nothing more can be dropped.
  void cut() {
    if (n_held_ < n_decoded_ && n_droppable_ > 0) {
      llama_memory_seq_rm(memory_, 0, n_held_, -1);
      n_droppable_ = 0;
    }
  }

  llama_memory_t memory_;
  int32_t n_snapshots_;
  int32_t n_ubatch_;
  std::unique_ptr<KeptInputs> inputs_;  // null: none are kept
  bool knows_before_;
  int32_t n_held_ = 0;
  int32_t n_decoded_ = 0;  // tokens after the last decode
  int32_t n_droppable_ = 0;
};

// Sequence 1 shares the recurrent state of the marked place and nothing else, so that the next decode of sequence 0
// writes a state of its own. Coming back is the same the other way round; attention then drops what came later.
class Mark final : public TargetMemory {
 public:
  explicit Mark(llama_context *context)
      : memory_(llama_get_memory(context)),
        has_window_(llama_model_n_swa(llama_get_model(context)) > 0),
        n_sequences_(llama_n_seq_max(context)),
        n_ubatch_(static_cast<int32_t>(llama_n_ubatch(context))) {}

  // A state that is shared is written anew by the next decode, which then cannot reuse its graph, so that plain
  // decoding marks now and then only.
  void mark(bool is_needed) override {
    const bool leaves_window = has_window_ && n_held_ + 1 - marked_ > n_ubatch_;
    if (is_needed || leaves_window || n_held_ - marked_ >= kMostBehind) {
      share(kSequence, kMark);
      marked_ = n_held_;
      n_reached_ = n_held_;
    }
  }

  int32_t go_back(int32_t n_kept) override {
    if (n_held_ <= n_kept) {
      return n_held_;
    }
    // beyond a micro-batch, what came later may have pushed out of a sliding window what the mark needs
    if (n_kept >= marked_ && (!has_window_ || n_reached_ - marked_ <= n_ubatch_)) {
      share(kMark, kSequence);
      llama_memory_seq_rm(memory_, kSequence, marked_, -1);
    } else if (n_kept == 0) {
      llama_memory_seq_rm(memory_, kMark, 0, -1);
      llama_memory_seq_rm(memory_, kSequence, 0, -1);
      marked_ = 0;
    } else {
      return kCannot;
    }
    n_held_ = marked_;
    n_reached_ = marked_;
    return llama_memory_seq_pos_max(memory_, kSequence) == marked_ - 1 ? n_held_ : kLost;
  }

  int32_t place_before(int32_t n_kept) const override { return n_kept < n_held_ ? marked_ : n_held_; }

  int32_t max_rows() const override { return has_window_ ? n_ubatch_ : std::numeric_limits<int32_t>::max(); }
  uint64_t bytes(uint64_t state_bytes) const override { return state_bytes / n_sequences_; }

  void decoded(int32_t n_held, int32_t n_rows, int32_t status) override {
    if (is_untouched(status)) {
      return;
    }
    n_reached_ = std::max(n_reached_, n_held + n_rows);
    n_held_ = n_held + n_rows;
  }

  void cleared() override {
    n_held_ = 0;
    marked_ = 0;
    n_reached_ = 0;
  }

  void replaced(int32_t n_held) override {
    n_held_ = n_held;
    n_reached_ = n_held;
    marked_ = n_held;
    share(kSequence, kMark);
  }

  void release() override { llama_memory_seq_rm(memory_, kMark, 0, -1); }

 private:
  static constexpr int32_t kSequence = 0;
  static constexpr int32_t kMark = 1;
  static constexpr int32_t kMostBehind = 32;

  // Recurrent states have no range, so one that holds nothing leaves attention out.
  void share(int32_t from, int32_t to) {
    constexpr int32_t kFar = std::numeric_limits<int32_t>::max();
    llama_memory_seq_cp(memory_, from, to, kFar, kFar);
  }

  llama_memory_t memory_;
  bool has_window_;
  uint32_t n_sequences_;
  int32_t n_ubatch_;
  int32_t n_held_ = 0;
  int32_t marked_ = 0;     // tokens held at the mark
  int32_t n_reached_ = 0;  // most tokens held since
};

// Null where snapshots are llama.cpp's.
std::unique_ptr<KeptInputs> find_kept_inputs(llama_context *context) {
  if (!memory_problem(context, architecture_of(llama_get_model(context))).empty()) {
    return nullptr;
  }
  try {
    ggml_cgraph *graph = probe_graph(context).graph;
    return is_all_on_cpu(graph) ? KeptInputs::find(graph) : nullptr;
  } catch (const Error &) {
    return nullptr;  // creating a session will say what is wrong
  }
}

// Whether sequences share one attention cache; nothing says so directly.
bool is_unified(const llama_context *context) {
  return llama_n_ctx_seq(context) == llama_n_ctx(context);
}

}  // namespace

bool is_recurrent(const llama_model *model) {
  return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

std::string memory_problem(llama_context *context, const std::string &architecture) {
  if (!is_recurrent(llama_get_model(context))) {
    return "";
  }
  const uint32_t n_snapshots = llama_n_rs_seq(context);
  if (n_snapshots > 0 && llama_n_ubatch(context) <= n_snapshots + 1) {
    return format("the context keeps %u recurrent states (n_rs_seq), which takes an n_ubatch above %u", n_snapshots,
                  n_snapshots + 1);
  }
  if (n_snapshots > 0) {
    return "";
  }
  if (goes_back(architecture) == GoesBack::kBySnapshots) {
    return format(
        "'%s' keeps a recurrent state, and this context no earlier ones of it to go back to; create it with "
        "n_rs_seq = %u",
        architecture.c_str(), kSnapshots);
  }
  if (llama_n_seq_max(context) < 2 || !is_unified(context)) {
    return format(
        "'%s' keeps a recurrent state, which takes a second sequence to go back to; create the context with "
        "n_seq_max = 2 and kv_unified = true, or load the model with pydflash2.load or df2_target_open",
        architecture.c_str());
  }
  return "";
}

std::unique_ptr<TargetMemory> make_target_memory(llama_context *context, bool may_use_rules) {
  if (!is_recurrent(llama_get_model(context))) {
    return std::make_unique<Truncation>(context);
  }
  if (llama_n_rs_seq(context) > 0) {
    return std::make_unique<Snapshots>(context, may_use_rules ? find_kept_inputs(context) : nullptr);
  }
  return std::make_unique<Mark>(context);
}

}  // namespace df2
