// Copies of a target's recurrent state, which cannot come back to an earlier one by itself, so that a long rewind
// decodes some tokens again and not all. What attention holds of every token stays where it is and is not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "target/target_memory.h"

struct llama_context;

namespace df2 {

class Checkpoints {
 public:
  // What a place is: somewhere in a text, or one that chats come back to, such as where a message begins.
  enum class Place { kText, kBoundary };

  // budget: most bytes of all copies together. 0: none is made, and nothing restored.
  Checkpoints(llama_context *context, TargetMemory &memory, uint64_t budget);

  // Whether a context's state can be copied.
  static bool are_possible(const llama_context *context);

  // A budget for programs that name none, of so much memory.
  static uint64_t default_budget(uint64_t available);

  bool are_made() const { return can_copy_ && budget_ > 0; }

  // Copies the state of n_held tokens, which are what the memory holds now, unless it is too close to the last copy, or
  // the budget better spent on the others. That there is no memory for it is no failure.
  void take(int32_t n_held, Place place) noexcept;

  // The sequence was cut to n_kept tokens, or will go on differently behind them.
  void forget(int32_t n_kept);

  // The last place at or before n_kept that there is a copy of; 0: none.
  int32_t place_before(int32_t n_kept) const;

  // Takes the memory back to the place_before(n_kept): the
  // number of tokens held then, or one of TargetMemory's other answers.
  int32_t restore(int32_t n_kept);

  size_t n_held() const { return held_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  struct Checkpoint {
    int32_t n_tokens;
    Place place;
    size_t size;
    std::unique_ptr<uint8_t[]> state;
  };

  bool is_due(int32_t n_held, Place place);
  bool make_room(Checkpoint *added);
  size_t least_missed() const;
  void drop(size_t index);

  llama_context *context_;
  TargetMemory &memory_;
  bool can_copy_;
  uint64_t budget_;
  uint64_t bytes_ = 0;
  std::vector<Checkpoint> held_;  // by number of tokens
  int32_t last_considered_ = 0;   // where a copy was last made or not found worth it
};

}  // namespace df2
