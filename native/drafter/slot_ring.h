// Which context position each slot of a drafter cache holds. A position always lives in slot `position % capacity`, so
// the newest ones push out the oldest, and rewinding is forgetting. Pure bookkeeping: the K/V rows are ggml tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace df2 {

class SlotRing {
 public:
  // window: most positions a query may look back, itself included. n_block: longest block. The slack lets a rewind
  // of that many positions keep a full window.
  SlotRing(int32_t window, int32_t n_block, int32_t slack);

  int32_t capacity() const { return static_cast<int32_t>(positions_.size()); }

  // A slot behind the ring for rows that only pad a batch; never visible.
  int32_t trash_slot() const { return capacity(); }

  int32_t slot_of(int32_t position) const { return position % capacity(); }

  void insert(int32_t position);

  // Forgets every position >= position.
  void rewind(int32_t position);

  // Slots [0, n_used) cover everything held.
  int32_t n_used() const { return n_used_; }

  // Whether a query at `position` sees the slot: it is held, within the window on either side, and, for causal
  // blocks, not later than the query.
  bool sees(int32_t position, int32_t slot, bool is_causal) const {
    const int32_t held = positions_[static_cast<size_t>(slot)];
    const int32_t distance = position - held;
    return held >= 0 && distance < window_ && -distance < window_ && (!is_causal || distance >= 0);
  }

 private:
  int32_t window_;
  int32_t n_used_ = 0;
  std::vector<int32_t> positions_;  // -1: empty
};

}  // namespace df2
