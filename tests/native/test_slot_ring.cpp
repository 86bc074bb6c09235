#include <set>

#include "check.h"
#include "drafter/slot_ring.h"

namespace {

// The positions a query sees, by asking every slot.
std::set<int32_t> visible(const df2::SlotRing &ring, int32_t position, bool is_causal) {
  std::set<int32_t> slots;
  for (int32_t slot = 0; slot < ring.capacity(); ++slot) {
    if (ring.sees(position, slot, is_causal)) {
      slots.insert(slot);
    }
  }
  return slots;
}

std::set<int32_t> slots_of(const df2::SlotRing &ring, int32_t first, int32_t last) {
  std::set<int32_t> slots;
  for (int32_t position = first; position <= last; ++position) {
    slots.insert(ring.slot_of(position));
  }
  return slots;
}

void test_window() {
  df2::SlotRing ring(8, 4, 16);
  for (int32_t position = 0; position < 100; ++position) {
    ring.insert(position);
    CHECK(visible(ring, position, false) == slots_of(ring, position >= 7 ? position - 7 : 0, position));
  }
  CHECK(ring.n_used() == ring.capacity());
  CHECK(ring.trash_slot() == ring.capacity());
}

void test_block() {
  df2::SlotRing ring(8, 4, 16);
  for (int32_t position = 0; position < 50; ++position) {
    ring.insert(position);
  }
  // a block at 46..49: the anchor sees the whole block unless it is causal
  CHECK(visible(ring, 46, false) == slots_of(ring, 39, 49));
  CHECK(visible(ring, 46, true) == slots_of(ring, 39, 46));
  CHECK(visible(ring, 49, true) == slots_of(ring, 42, 49));
}

void test_rewind() {
  df2::SlotRing ring(8, 4, 16);
  for (int32_t position = 0; position < 20; ++position) {
    ring.insert(position);
  }
  ring.rewind(10);
  CHECK(ring.n_used() == 10);
  CHECK(visible(ring, 10, false) == slots_of(ring, 3, 9));
  ring.insert(10);
  CHECK(visible(ring, 11, false) == slots_of(ring, 4, 10));
  ring.rewind(0);
  CHECK(ring.n_used() == 0);
  CHECK(visible(ring, 0, false).empty());
}

// The slack keeps a full window across a rewind; beyond it the window has a hole, and no stale position shows.
void test_deep_rewind() {
  df2::SlotRing ring(8, 4, 16);
  for (int32_t position = 0; position < 100; ++position) {
    ring.insert(position);
  }
  ring.rewind(84);
  CHECK(visible(ring, 84, false) == slots_of(ring, 77, 83));
  ring.rewind(40);
  CHECK(visible(ring, 40, false).empty());
}

}  // namespace

int main() {
  test_window();
  test_block();
  test_rewind();
  test_deep_rewind();
  return report("slot_ring");
}
