// What drafting and verifying cost. Everything is relative to a plain cycle, because that is what decisions are about,
// and because ratios outlast a machine's changes of speed; the one absolute number follows them.
#pragma once

#include <cstdint>

#include "core/draft_profile.h"

namespace df2 {

class DraftCosts {
 public:
  // profile: where the costs are kept, and what is known of them already.
  explicit DraftCosts(DraftProfile *profile) : known_(*profile) {}
  DraftCosts(const DraftCosts &) = delete;
  DraftCosts &operator=(const DraftCosts &) = delete;

  // Whether a plain cycle has been measured, here or in an earlier session.
  bool is_known() const { return known_.plain_us > 0.0; }

  // Of verifying n tokens, any number, as often as before: 1 for none.
  double verify(int32_t n) const;

  // Of drafting n >= 1 tokens: a fixed part, and a part per token.
  double draft(int32_t n) const;

  // Of verifying another number of tokens than the cycle before did: llama.cpp keeps one graph, and builds another.
  double change() const;

  // Whether something has turned out to cost more than was known.
  bool has_surprised() const { return has_surprised_; }

  // A cycle that took so long. is_change: as above. n_drafted 0: draft_us is not read. n_verified: any number; more
  // than the longest draft teaches nothing about verifying.
  void observe(int32_t n_drafted, int32_t n_verified, bool is_change, double draft_us, double verify_us);

 private:
  void follow_speed(int32_t n_drafted, int32_t n_verified, double change, double draft_us, double verify_us);
  void learn_verify(int32_t n_verified, double change, double verify_us);
  void learn_change(int32_t n_verified, double verify);
  void learn(LearntCost *cost, double sample, int32_t *n_surprises);

  DraftProfile &known_;
  double n_speeds_ = 0.0;           // cycles that the speed was followed by, in this session
  int32_t n_draft_surprises_ = 0;   // in a row
  int32_t n_verify_surprises_ = 0;  // in a row
  bool has_surprised_ = false;
};

}  // namespace df2
