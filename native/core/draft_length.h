// Chooses how many tokens to draft, and how many of a draft to verify, from what both cost, how sure the drafter is of
// each token, and how often it was right when it was that sure: on this machine, with this pair, in this text. Drafting
// nothing is always among the choices, so that a drafter that does not pay here costs little more than finding that
// out. What is learnt is of use to later sessions of the same pair: a DraftProfile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/draft_costs.h"
#include "core/draft_profile.h"

namespace df2 {

class DraftLength {
 public:
  // Why a cycle drafts, or does not.
  enum class Phase {
    kComparing,   // does not: there is nothing to judge drafts by yet
    kTrying,      // drafts: none has been seen yet
    kDrafting,    // drafts: it pays
    kRefreshing,  // does not, although it pays: what plain decoding costs was last measured long ago
    kResting,     // does not: it does not pay
    kProbing,     // drafts, although it did not pay: it may by now
  };

  // max: the longest draft, >= 1. known: what earlier sessions learnt; ignored if it is about another longest draft.
  explicit DraftLength(int32_t max, const DraftProfile &known = DraftProfile());

  // Another text, or another part of one: what was seen of the last one counts as experience from now on.
  void begin_text();

  // The length of the next cycle's draft: 0 .. max.
  int32_t choose();

  // What the last choice was made for; kComparing before the first.
  Phase phase() const { return phase_; }

  // How many tokens of a draft to verify: 0 .. n_draft. q: [n_draft], the drafter's own probability of each.
  // n_replayed: tokens that are decoded again with them.
  int32_t cut(const float *q, int32_t n_draft, int32_t n_replayed) const;

  // What a cycle drafted (0 .. max), verified, kept and cost; q as above, not read where nothing was drafted. A cycle
  // that the caller's limits cut short is as good a sample as any. n_replayed: tokens that were decoded again because
  // the target could not drop a rejected draft alone; that draft is charged for them.
  void observe(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted, int32_t n_replayed,
               uint64_t draft_us, uint64_t verify_us);

  // What is known by now.
  DraftProfile profile() const;

 private:
  // A cycle that drafted. It is judged anew whenever something is learnt.
  struct Drafted {
    std::vector<float> q;  // of the drafted tokens
    int32_t n_verified;
    double change;  // what it cost that another number of tokens was verified than before
    double replay;  // what decoding again cost that its rejection caused
    int64_t cycle;
  };

  // Sums over drafting cycles; costs in plain cycles, in which plain decoding yields one token each.
  struct Yield {
    double n = 0.0;
    double tokens = 0.0;
    double cost = 0.0;
  };

  double chance(float q) const;
  double expected_accepted(const float *q, int32_t n_verified) const;
  double expected_tokens(const float *q, int32_t n_verified) const;
  double change_to(int32_t n_behind) const;
  double cost_of(const Drafted &drafted) const;
  double luck() const;
  double experience() const;
  Yield recent_yield() const;
  double rate() const;
  double value_of_time() const;
  bool pays() const;
  bool may_lose() const;
  int64_t probe_interval() const;
  Phase next_phase() const;
  int32_t best_length() const;
  void end_text(DraftProfile *profile) const;
  void remember(const Drafted &drafted, DraftProfile *profile) const;
  void learn_chances(const float *q, int32_t n_verified, int32_t n_accepted);
  void learn_gains(const float *q, int32_t n_drafted);
  void distrust_experience();
  void forget_what_did_not_pay();
  void charge_replay(int32_t n_verified, int32_t n_behind);
  void learn_draft(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted, double change);

  int32_t max_;
  DraftProfile known_;  // of all texts
  DraftCosts costs_;
  // Of this text:
  std::deque<Drafted> recent_;
  double n_expected_ = 0.0;  // tokens that were to be accepted, and those that were; lately
  double n_accepted_ = 0.0;
  double lost_ = 0.0;  // against plain decoding, in plain cycles; negative: gained
  double n_tokens_ = 0.0;
  double last_rate_ = 0.0;  // that of the last draft
  // Of this session:
  bool is_distrustful_ = false;
  int32_t length_;         // of the last draft
  int32_t n_behind_ = -1;  // tokens that the cycle before verified or replayed; -1: it was not one of these
  int64_t cycle_ = 0;
  int64_t last_draft_ = 0;  // the cycle that was last to draft
  int64_t n_plain_ = 0;     // cycles that measured plain decoding
  int64_t last_plain_ = 0;  // the cycle that last measured plain decoding
  int64_t plain_interval_;  // how long that will do
  int64_t patience_ = 1;    // how many times rarer probes come, for those that lost
  Phase phase_ = Phase::kComparing;
};

}  // namespace df2
