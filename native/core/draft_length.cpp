#include "core/draft_length.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace df2 {

namespace {

// The length of the first drafts: long enough to learn a slope from.
constexpr int32_t kFirstLength = 3;
// Drafts to look at before drafting may be given up, and how much better than it looks drafting may be after one draft;
// after n it is an n-th of that.
constexpr int64_t kFirstDrafts = 2;
constexpr double kDoubt = 1.0;
// Verifying a token more costs a fifth of a plain cycle, give or take.
constexpr double kUnpricedChance = 0.2;
// Plain cycles anchor the comparison, which drifts as the context grows.
constexpr int64_t kPlainInterval = 64;
// Every so often one token more is verified than seems worth it: a cost that was measured on a bad moment would
// otherwise never be measured again.
constexpr int64_t kLongerInterval = 16;
// While not drafting, probes may cost this share of the time, and come at least this rarely or often.
constexpr double kProbeBudget = 0.012;
constexpr int64_t kMinProbeInterval = 8;
constexpr int64_t kMaxProbeInterval = 256;
// Probes that keep losing come up to this many times rarer.
constexpr int64_t kMaxPatience = 4;
// The sums over drafting cycles halve in about 14 of them, what is known of a bin in about 34 tokens.
constexpr double kRateDecay = 0.95;
constexpr double kBinDecay = 0.98;
// What is known of bins that nothing falls into fades, per draft.
constexpr double kForgetting = 0.995;
// How much of a cycle's yield is counted as it came out; the rest as it was expected.
constexpr double kOutcomeShare = 0.7;
// A bin begins as if it had seen this many tokens, of which the square of their q was right: drafters are surer of
// themselves than they should be.
constexpr double kPriorWeight = 3.0;
// Costs follow slow changes and shrug off a single disturbed cycle: a sample weighs by the cycles since the last one,
// and cannot be far above what is known. The first few only count where they are low.
constexpr double kCostWeight = 0.1;
constexpr double kMaxCostWeight = 0.5;
constexpr double kOutlier = 1.5;
constexpr int32_t kTrusted = 3;
// Drafting must promise a real gain before it replaces plain decoding.
constexpr double kMargin = 1.02;
// How fast a draft shrinks towards what is verified of it, per cycle.
constexpr double kLengthDecay = 0.15;

}  // namespace

void DraftLength::Cost::add(double sample, int64_t cycle) {
  const int64_t age = cycle - last_cycle;
  last_cycle = cycle;
  ++n_seen;
  if (n_seen <= kTrusted) {
    value = n_seen == 1 ? sample : std::min(value, sample);
    return;
  }
  const double weight = std::min(kMaxCostWeight, kCostWeight * static_cast<double>(age));
  value += weight * (std::min(sample, kOutlier * value) - value);
}

DraftLength::DraftLength(int32_t max)
    : max_(max),
      draft_(static_cast<size_t>(max) + 1),
      verify_(static_cast<size_t>(max) + 1),
      n_cut_to_(static_cast<size_t>(max) + 1, 0.0),
      used_length_(std::min(kFirstLength, max)) {}

size_t DraftLength::bin_of(float q) {
  // narrower towards 1, where most accepted tokens are
  constexpr float kEdges[] = {0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.97f};
  return static_cast<size_t>(std::upper_bound(std::begin(kEdges), std::end(kEdges), q) - std::begin(kEdges));
}

// That a token is right if all before it were.
double DraftLength::chance(float q) const {
  const Bin &bin = bins_[bin_of(q)];
  const double prior = static_cast<double>(q) * static_cast<double>(q);
  return (kPriorWeight * prior + bin.n_right) / (kPriorWeight + bin.n_reached);
}

// Measured, or on the line through the nearest measured lengths: a verify costs a fixed part plus a part per token. The
// fixed part is plain decoding's, which grows with the context.
double DraftLength::verify_cost(int32_t n_verified) const {
  const auto at = [&](int32_t n) {
    const Cost &cost = verify_[static_cast<size_t>(n)];
    return cost.plain > 0.0 ? std::max(verify_[0].value, cost.value + verify_[0].value - cost.plain) : cost.value;
  };
  if (at(n_verified) > 0.0) {
    return at(n_verified);
  }
  int32_t below = -1;
  int32_t above = -1;
  for (int32_t n = 0; n <= max_; ++n) {
    if (at(n) > 0.0 && n < n_verified) {
      below = n;
    }
    if (at(n) > 0.0 && n > n_verified && above < 0) {
      above = n;
    }
  }
  if (below > 0 && above < 0) {
    // beyond the longest measured length: the slope from plain decoding on
    return at(0) > 0.0 ? at(below) + std::max(0.0, at(below) - at(0)) / below * (n_verified - below) : 0.0;
  }
  if (below < 0 || above < 0) {
    return 0.0;
  }
  return at(below) + (at(above) - at(below)) * (n_verified - below) / (above - below);
}

// Of the length that was drafted most: most of a draft does not depend on its length.
double DraftLength::draft_cost() const {
  const auto most =
      std::max_element(draft_.begin(), draft_.end(), [](const Cost &a, const Cost &b) { return a.n_seen < b.n_seen; });
  return most->value;
}

// Tokens per microsecond without drafting; 0 while unknown, as below.
double DraftLength::plain_rate() const {
  return verify_cost(0) > 0.0 ? 1.0 / verify_cost(0) : 0.0;
}

double DraftLength::n_drafting() const {
  return std::accumulate(n_cut_to_.begin(), n_cut_to_.end(), 0.0);
}

// With what things cost by now: the first samples are the worst.
double DraftLength::drafting_us() const {
  double cost = n_drafting() * draft_cost();
  for (int32_t n = 0; n <= max_; ++n) {
    cost += n_cut_to_[static_cast<size_t>(n)] * verify_cost(n);
  }
  return cost;
}

double DraftLength::draft_rate() const {
  return n_drafts_ > 0 ? tokens_ / drafting_us() : 0.0;
}

double DraftLength::expected_tokens(const float *q, int32_t n_verified) const {
  double tokens = 1.0;
  double all_right = 1.0;
  for (int32_t i = 0; i < n_verified; ++i) {
    all_right *= chance(q[i]);
    tokens += all_right;
  }
  return tokens;
}

// Drafting gets the benefit of the doubt while little has been seen of it.
bool DraftLength::pays() const {
  return draft_rate() * (1.0 + kDoubt / static_cast<double>(n_drafts_)) > kMargin * plain_rate();
}

// Cycles between probes while not drafting: what a probe loses, in plain cycles, over the budget.
int64_t DraftLength::probe_interval() const {
  const double loss = std::max(0.0, (drafting_us() * plain_rate() - tokens_) / n_drafting());
  const auto interval = static_cast<int64_t>(loss / kProbeBudget);
  return std::clamp(interval * patience_, kMinProbeInterval, kMaxProbeInterval);
}

// One more than was worth verifying lately.
int32_t DraftLength::adapted_length() const {
  return std::clamp(static_cast<int32_t>(used_length_ + 1.0), 1, max_);
}

// The one place where phases change. It looks at what was measured and at how long ago, never at the phase before: a
// cycle that failed, or that the caller's limits kept from drafting, is simply tried again.
DraftLength::Phase DraftLength::next_phase() const {
  const Cost &plain = verify_[0];
  if (plain.n_seen < kTrusted && n_drafts_ > plain.n_seen * plain.n_seen) {
    return Phase::kComparing;
  }
  if (n_drafts_ < kFirstDrafts) {
    return Phase::kTrying;
  }
  if (pays()) {
    return cycle_ - plain.last_cycle < kPlainInterval ? Phase::kDrafting : Phase::kRefreshing;
  }
  return cycle_ - last_draft_ < probe_interval() ? Phase::kResting : Phase::kProbing;
}

int32_t DraftLength::choose() {
  ++cycle_;
  phase_ = next_phase();
  if (phase_ == Phase::kDrafting || phase_ == Phase::kRefreshing) {
    patience_ = 1;
  } else if (phase_ == Phase::kProbing) {
    patience_ = std::min(2 * patience_, kMaxPatience);
  }
  if (phase_ != Phase::kTrying && phase_ != Phase::kDrafting && phase_ != Phase::kProbing) {
    return 0;
  }
  last_draft_ = cycle_;
  return adapted_length();
}

// While costs are unknown: what is likely enough to be worth it on most machines, but something.
int32_t DraftLength::unpriced_cut(const float *q, int32_t n_draft) const {
  int32_t n = 1;
  double all_right = chance(q[0]);
  while (n < n_draft && all_right * chance(q[n]) > kUnpricedChance) {
    all_right *= chance(q[n++]);
  }
  return n;
}

// The draft is paid for: what counts is whether a token is worth more than the time its verification takes.
int32_t DraftLength::cut(const float *q, int32_t n_draft) const {
  const double rate = std::max(draft_rate(), plain_rate());
  if (rate <= 0.0 || verify_[0].n_seen == 0) {
    return unpriced_cut(q, n_draft);
  }
  // a draft that is made to learn from it is verified in part at least
  int32_t best = phase_ == Phase::kDrafting ? 0 : 1;
  double best_gain = expected_tokens(q, best) - rate * verify_cost(best);
  for (int32_t n = best + 1; n <= n_draft; ++n) {
    const double gain = expected_tokens(q, n) - rate * verify_cost(n);
    if (gain > best_gain) {
      best = n;
      best_gain = gain;
    }
  }
  return cycle_ % kLongerInterval == 0 ? std::min(best + 1, n_draft) : best;
}

void DraftLength::learn_confidence(const float *q, int32_t n_verified, int32_t n_accepted) {
  for (Bin &bin : bins_) {
    bin.n_reached *= kForgetting;
    bin.n_right *= kForgetting;
  }
  const int32_t n_reached = std::min(n_verified, n_accepted + 1);
  for (int32_t i = 0; i < n_reached; ++i) {
    Bin &bin = bins_[bin_of(q[i])];
    bin.n_reached = kBinDecay * bin.n_reached + 1.0;
    bin.n_right = kBinDecay * bin.n_right + (i < n_accepted ? 1.0 : 0.0);
  }
}

void DraftLength::learn_length(int32_t n_drafted, int32_t n_verified) {
  const double wanted = n_verified == n_drafted ? n_drafted + 1.0 : n_verified;
  used_length_ = std::clamp(std::max(wanted, used_length_ - kLengthDecay), 0.0, static_cast<double>(max_));
}

void DraftLength::observe(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted, uint64_t draft_us,
                          uint64_t verify_us) {
  verify_[static_cast<size_t>(n_verified)].add(static_cast<double>(verify_us), cycle_);
  if (verify_[0].n_seen >= kTrusted) {
    verify_[static_cast<size_t>(n_verified)].plain = verify_[0].value;
  }
  if (n_drafted == 0) {
    return;
  }
  ++n_drafts_;
  draft_[static_cast<size_t>(n_drafted)].add(static_cast<double>(draft_us), cycle_);
  learn_confidence(q, n_verified, n_accepted);
  learn_length(n_drafted, n_verified);
  for (double &n_cycles : n_cut_to_) {
    n_cycles *= kRateDecay;
  }
  n_cut_to_[static_cast<size_t>(n_verified)] += 1.0;
  // what came of it, and what was to be expected, which is less of a gamble but believes the drafter
  const double outcome = n_accepted + 1.0;
  tokens_ = kRateDecay * tokens_ + kOutcomeShare * outcome + (1.0 - kOutcomeShare) * expected_tokens(q, n_verified);
}

}  // namespace df2
