// Chooses how many tokens to draft, and how many of a draft to verify, from what both cost, how sure the drafter is of
// each token, and how often it was right when it was that sure: on this machine, with this pair, in this text. Drafting
// nothing is always among the choices, so that a drafter that does not pay here costs little more than finding that
// out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace df2 {

class DraftLength {
 public:
  // Why a cycle drafts, or does not.
  enum class Phase {
    kTrying,      // drafts: too few drafts have been seen to judge them
    kComparing,   // does not: too few plain cycles have been seen to judge drafts by
    kDrafting,    // drafts: it pays
    kRefreshing,  // does not, although it pays: what plain decoding costs was last measured long ago
    kResting,     // does not: it does not pay
    kProbing,     // drafts, although it did not pay: it may by now
  };

  // max: the longest draft, >= 1.
  explicit DraftLength(int32_t max);

  // The length of the next cycle's draft: 0 .. max.
  int32_t choose();

  // What the last choice was made for; kTrying before the first.
  Phase phase() const { return phase_; }

  // How many tokens of a draft to verify: 0 .. n_draft. q: [n_draft], the drafter's own probability of each.
  int32_t cut(const float *q, int32_t n_draft) const;

  // What a cycle drafted (0 .. max), verified, kept and cost; q as above, not read where nothing was drafted. A cycle
  // that the caller's limits cut short is as good a sample as any.
  void observe(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted, uint64_t draft_us,
               uint64_t verify_us);

 private:
  // A running cost in microseconds; 0 until measured.
  struct Cost {
    double value = 0.0;
    int32_t n_seen = 0;
    int64_t last_cycle = 0;  // when it was last seen
    double plain = 0.0;      // what plain decoding was known to cost at the time; of verify_
    void add(double sample, int64_t cycle);
  };

  // Among tokens the drafter was about equally sure of: those that were looked at, and those that were right.
  struct Bin {
    double n_reached = 0.0;
    double n_right = 0.0;
  };

  static size_t bin_of(float q);
  double chance(float q) const;
  double verify_cost(int32_t n_verified) const;
  double draft_cost() const;
  double plain_rate() const;
  double n_drafting() const;
  double drafting_us() const;
  double draft_rate() const;
  double expected_tokens(const float *q, int32_t n_verified) const;
  bool pays() const;
  int64_t probe_interval() const;
  Phase next_phase() const;
  int32_t adapted_length() const;
  int32_t unpriced_cut(const float *q, int32_t n_draft) const;
  void learn_confidence(const float *q, int32_t n_verified, int32_t n_accepted);
  void learn_length(int32_t n_drafted, int32_t n_verified);

  int32_t max_;
  std::vector<Cost> draft_;   // by length, [0] unused
  std::vector<Cost> verify_;  // by length
  std::array<Bin, 8> bins_;
  // Decayed sums over the cycles that drafted: their number, by how much of the draft they verified, and the tokens
  // they yielded.
  std::vector<double> n_cut_to_;
  double tokens_ = 0.0;
  double used_length_ = 0.0;  // a decayed peak of the lengths verified
  int64_t n_drafts_ = 0;
  int64_t cycle_ = 0;
  int64_t last_draft_ = 0;  // the cycle that was last to draft
  int64_t patience_ = 1;    // how many times rarer probes come, for those that lost
  Phase phase_ = Phase::kTrying;
};

}  // namespace df2
