#include "target/target_memory.h"

#include <algorithm>
#include <limits>

#include "common/error.h"
#include "llama.h"
#include "target/architectures.h"

namespace df2 {

namespace {

// Statuses of llama_decode after which the memory holds what it held before: refused, and no room.
bool is_untouched(int32_t status) {
  return status == -1 || status == 1;
}

// Attention alone: any end of the sequence can be cut off.
class Truncation final : public TargetMemory {
 public:
  explicit Truncation(llama_context *context)
      : memory_(llama_get_memory(context)), n_swa_(llama_model_n_swa(llama_get_model(context))) {}

  void mark(bool /*is_needed*/) override {}

  int32_t go_back(int32_t n_kept) override {
    return can_continue_at(n_kept) && llama_memory_seq_rm(memory_, 0, n_kept, -1) ? n_kept : kCannot;
  }

  int32_t max_rows() const override { return std::numeric_limits<int32_t>::max(); }
  void decoded(int32_t /*n_held*/, int32_t /*n_rows*/, int32_t /*status*/) override {}
  void cleared() override {}

 private:
  // A sliding-window cache drops what its newest position no longer sees.
  bool can_continue_at(int32_t position) const {
    if (n_swa_ <= 0 || position == 0) {
      return true;
    }
    const int32_t oldest = llama_memory_seq_pos_min(memory_, 0);
    return oldest >= 0 && oldest <= std::max(0, position - n_swa_);
  }

  llama_memory_t memory_;
  int32_t n_swa_;
};

// llama.cpp keeps the states before the last rows it decoded (llama_context_params.n_rs_seq). It says yes to more than
// it has: to all rows of a decode, or to a second step back; and what its own cleaning up after a failed decode leaves
// behind is a state of nothing.
class Snapshots final : public TargetMemory {
 public:
  explicit Snapshots(llama_context *context)
      : memory_(llama_get_memory(context)),
        n_snapshots_(static_cast<int32_t>(llama_n_rs_seq(context))),
        n_ubatch_(static_cast<int32_t>(llama_n_ubatch(context))) {}

  void mark(bool /*is_needed*/) override {}

  int32_t go_back(int32_t n_kept) override {
    if (n_kept == n_held_) {
      return n_held_;
    }
    if (n_kept > 0 && n_held_ - n_kept > n_droppable_) {
      return kCannot;
    }
    llama_memory_seq_rm(memory_, 0, n_kept, -1);
    n_held_ = n_kept;
    n_droppable_ = 0;
    return llama_memory_seq_pos_max(memory_, 0) == n_kept - 1 ? n_held_ : kLost;
  }

  int32_t max_rows() const override { return std::min(n_snapshots_ + 1, n_ubatch_); }

  void decoded(int32_t n_held, int32_t n_rows, int32_t status) override {
    if (is_untouched(status)) {
      return;
    }
    n_held_ = n_held + n_rows;
    n_droppable_ = status == 0 && n_rows <= n_ubatch_ ? std::min(n_rows - 1, n_snapshots_) : 0;
  }

  void cleared() override {
    n_held_ = 0;
    n_droppable_ = 0;
  }

 private:
  llama_memory_t memory_;
  int32_t n_snapshots_;
  int32_t n_ubatch_;
  int32_t n_held_ = 0;
  int32_t n_droppable_ = 0;
};

// Sequence 1 shares the recurrent state of the marked place and nothing else, so that the next decode of sequence 0
// writes a state of its own. Coming back is the same the other way round; attention then drops what came later.
class Mark final : public TargetMemory {
 public:
  explicit Mark(llama_context *context)
      : memory_(llama_get_memory(context)),
        has_window_(llama_model_n_swa(llama_get_model(context)) > 0),
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

  int32_t max_rows() const override { return has_window_ ? n_ubatch_ : std::numeric_limits<int32_t>::max(); }

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
  int32_t n_ubatch_;
  int32_t n_held_ = 0;
  int32_t marked_ = 0;     // tokens held at the mark
  int32_t n_reached_ = 0;  // most tokens held since
};

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

std::unique_ptr<TargetMemory> make_target_memory(llama_context *context) {
  if (!is_recurrent(llama_get_model(context))) {
    return std::make_unique<Truncation>(context);
  }
  if (llama_n_rs_seq(context) > 0) {
    return std::make_unique<Snapshots>(context);
  }
  return std::make_unique<Mark>(context);
}

}  // namespace df2
