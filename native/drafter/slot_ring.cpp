#include "drafter/slot_ring.h"

#include <algorithm>

namespace df2 {

SlotRing::SlotRing(int32_t window, int32_t n_block, int32_t slack)
    : window_(window), positions_(static_cast<size_t>(window + n_block + slack), -1) {}

void SlotRing::insert(int32_t position) {
  const int32_t slot = slot_of(position);
  positions_[static_cast<size_t>(slot)] = position;
  n_used_ = std::max(n_used_, slot + 1);
}

void SlotRing::rewind(int32_t position) {
  n_used_ = 0;
  for (int32_t slot = 0; slot < capacity(); ++slot) {
    int32_t &held = positions_[static_cast<size_t>(slot)];
    if (held >= position) {
      held = -1;
    }
    if (held >= 0) {
      n_used_ = slot + 1;
    }
  }
}

}  // namespace df2
