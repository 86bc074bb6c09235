// What a target's memory holds of a session's sequence, which is sequence 0 of its context, and how it goes back to
// fewer tokens.
//
// An attention cache drops what it is told to. A recurrent state has no past: either some snapshots of it are kept, by
// llama.cpp or as inputs of what came last, or an earlier state is marked, which the memory can return to and decode
// the tokens behind it again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct llama_context;
struct llama_model;

namespace df2 {

class KeptInputs;

class TargetMemory {
 public:
  // Instead of a number of tokens.
  static constexpr int32_t kCannot = -1;  // the memory cannot go back; nothing changed
  static constexpr int32_t kLost = -2;    // nor is it what it was

  virtual ~TargetMemory() = default;

  // Makes sure that a failure of the next decodes can be undone; is_needed: that the memory can come back to what it
  // holds now. Copies nothing.
  virtual void mark(bool is_needed) = 0;

  // Drops all but the first n_kept tokens, and more where only an earlier place is known: the number of tokens held
  // then, of which those that are missing are to be decoded again; or one of the above.
  virtual int32_t go_back(int32_t n_kept) = 0;

  // Where go_back() would lead.
  virtual int32_t place_before(int32_t n_kept) const { return n_kept; }

  // Positions that llama.cpp has where so many tokens are held: more, where dropping the others has been put off.
  virtual int32_t n_positions(int32_t n_held) const { return n_held; }

  // Most rows of a decode that go_back() may then drop all but the first of.
  virtual int32_t max_rows() const = 0;

  // llama_decode has returned `status` for n_rows tokens behind the first n_held. If it failed, they count as held
  // until the memory has gone back.
  virtual void decoded(int32_t n_held, int32_t n_rows, int32_t status) = 0;

  // The memory was emptied.
  virtual void cleared() = 0;

  // Memory that going back takes, out of the state_bytes that a context has for recurrent states.
  virtual uint64_t bytes(uint64_t /*state_bytes*/) const { return 0; }

  // Makes what llama.cpp holds of the sequence complete: before its state is copied or replaced.
  virtual void settle() {}

  // The state was replaced by a copy of an earlier one, which attention was cut to: n_held tokens are held now.
  virtual void replaced(int32_t /*n_held*/) {}

  // Leaves nothing behind but sequence 0, complete.
  virtual void release() {}

  // Where decodes keep inputs of recurrent states; null: nowhere.
  virtual KeptInputs *kept_inputs() { return nullptr; }
};

// Snapshots of contexts that this library opens, where they are the better way: as many tokens can be drafted.
constexpr uint32_t kSnapshots = 7;
// ... and where inputs are kept. All rows of a decode of as many can be dropped.
constexpr uint32_t kKeptSnapshots = 8;

// Whether a model keeps a recurrent state.
bool is_recurrent(const llama_model *model);

// Why a context's memory cannot go back at all; empty if it can.
std::string memory_problem(llama_context *context, const std::string &architecture);

// may_use_rules: whether the CPU back end computes the context's graphs with this library's rules.
std::unique_ptr<TargetMemory> make_target_memory(llama_context *context, bool may_use_rules);

}  // namespace df2
