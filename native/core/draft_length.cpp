#include "core/draft_length.h"

#include <algorithm>

namespace df2 {

namespace {

// The length of the first drafts: the cheapest one there is, and enough to learn a slope from.
constexpr int32_t kProbe = 1;
// Samples of plain decoding before anything is compared with it.
constexpr int32_t kTrusted = 2;
// The first probes include building the drafter's graphs: where verifying alone would pay, that many are made before
// drafting is judged too slow.
constexpr int32_t kFirstProbes = 4;
// Plain cycles are cheap to try and anchor the comparison, which drifts as the context grows.
constexpr int64_t kPlainInterval = 64;
// While not drafting, probes may cost this share of the time, and come at least this rarely or often.
constexpr double kProbeBudget = 0.012;
constexpr int64_t kMinProbeInterval = 8;
constexpr int64_t kMaxProbeInterval = 256;
// Probes that keep losing come up to this many times rarer.
constexpr int64_t kMaxPatience = 4;
// Trying a longer draft than the best one costs little when drafting pays.
constexpr int64_t kLongerInterval = 16;
// Acceptance follows the text: a count's weight halves in about 23 cycles.
constexpr double kDecay = 0.97;
// Before anything is known a position is worth a coin flip.
constexpr double kPriorReached = 1.0;
constexpr double kPriorAccepted = 0.5;
// Costs follow slow changes and shrug off a single disturbed cycle.
constexpr double kCostWeight = 0.1;
constexpr double kOutlier = 1.5;
// Drafting must promise a real gain before it replaces plain decoding.
constexpr double kMargin = 1.02;

}  // namespace

void DraftLength::Cost::add(double sample) {
  ++n_seen;
  if (n_seen <= 3) {
    value = n_seen == 1 ? sample : std::min(value, sample);
    return;
  }
  value += kCostWeight * (std::min(sample, kOutlier * value) - value);
}

DraftLength::DraftLength(int32_t max)
    : max_(max),
      draft_(static_cast<size_t>(max) + 1),
      verify_(static_cast<size_t>(max) + 1),
      accepted_(static_cast<size_t>(max), kPriorAccepted),
      reached_(static_cast<size_t>(max), kPriorReached) {}

// Measured, or on the line through the nearest measured lengths: a verify costs a fixed part plus a part per token.
double DraftLength::verify_cost(int32_t n_draft) const {
  const auto at = [&](int32_t n) { return verify_[static_cast<size_t>(n)].value; };
  if (at(n_draft) > 0.0) {
    return at(n_draft);
  }
  int32_t below = -1;
  int32_t above = -1;
  for (int32_t n = 0; n <= max_; ++n) {
    if (at(n) > 0.0 && n < n_draft) {
      below = n;
    }
    if (at(n) > 0.0 && n > n_draft && above < 0) {
      above = n;
    }
  }
  if (below > 0 && above < 0) {
    // beyond the longest measured length: the slope from plain decoding on
    return at(0) > 0.0 ? at(below) + std::max(0.0, at(below) - at(0)) / below * (n_draft - below) : 0.0;
  }
  if (below < 0 || above < 0) {
    return 0.0;
  }
  return at(below) + (at(above) - at(below)) * (n_draft - below) / (above - below);
}

// Measured, or the nearest measured length's: most of a draft does not depend on how much of the block is used.
double DraftLength::draft_cost(int32_t n_draft) const {
  double cost = 0.0;
  int32_t distance = max_ + 1;
  for (int32_t n = 1; n <= max_; ++n) {
    const double measured = draft_[static_cast<size_t>(n)].value;
    if (measured > 0.0 && std::abs(n - n_draft) < distance) {
      distance = std::abs(n - n_draft);
      cost = measured;
    }
  }
  return cost;
}

double DraftLength::expected_tokens(int32_t n_draft) const {
  double tokens = 1.0;
  double all_accepted = 1.0;
  for (int32_t i = 0; i < n_draft; ++i) {
    all_accepted *= accepted_[static_cast<size_t>(i)] / reached_[static_cast<size_t>(i)];
    tokens += all_accepted;
  }
  return tokens;
}

double DraftLength::rate(int32_t n_draft) const {
  const double verify = verify_cost(n_draft);
  const double draft = n_draft > 0 ? draft_cost(n_draft) : 0.0;
  if (verify <= 0.0 || (n_draft > 0 && draft <= 0.0)) {
    return 0.0;
  }
  return expected_tokens(n_draft) / (draft + verify);
}

int32_t DraftLength::best() const {
  int32_t best = 0;
  double best_rate = rate(0) * kMargin;
  for (int32_t n = 1; n <= max_; ++n) {
    if (rate(n) > best_rate) {
      best = n;
      best_rate = rate(n);
    }
  }
  return best;
}

// Whether drafts of this length would pay if drafting itself cost nothing.
bool DraftLength::may_pay(int32_t n_draft) const {
  return expected_tokens(n_draft) * verify_cost(0) > kMargin * verify_cost(n_draft);
}

// Cycles between probes while not drafting: what a probe loses, in plain cycles, over the budget.
int64_t DraftLength::probe_interval(int32_t probe) const {
  const double loss = (draft_cost(probe) + verify_cost(probe)) / verify_cost(0) - expected_tokens(probe);
  const auto interval = static_cast<int64_t>(std::max(0.0, loss) / kProbeBudget);
  return std::clamp(interval * patience_, kMinProbeInterval, kMaxProbeInterval);
}

// Whether the next cycle should measure instead of exploit, and with which length.
bool DraftLength::explore(int32_t current, int32_t *length) {
  const int32_t probe = std::min(kProbe, max_);
  if (verify_[0].n_seen < kTrusted) {
    *length = 0;
    return true;
  }
  const int32_t n_probed = verify_[static_cast<size_t>(probe)].n_seen;
  if (n_probed == 0 || (current == 0 && n_probed < kFirstProbes && may_pay(probe))) {
    *length = probe;
    return true;
  }
  if (current > 0 && cycle_ - last_plain_ >= kPlainInterval) {
    *length = 0;
    return true;
  }
  if (current == 0 && cycle_ - last_probe_ >= probe_interval(probe)) {
    patience_ = std::min(2 * patience_, kMaxPatience);
    *length = probe;
    return true;
  }
  if (current > 0 && current < max_ && cycle_ % kLongerInterval == 0) {
    *length = current + 1;
    return true;
  }
  return false;
}

int32_t DraftLength::choose() {
  ++cycle_;
  const int32_t current = best();
  if (current > 0) {
    patience_ = 1;
  }
  int32_t length = current;
  explore(current, &length);
  if (length == 0) {
    last_plain_ = cycle_;
  } else {
    last_probe_ = cycle_;
  }
  return length;
}

void DraftLength::observe(int32_t n_drafted, int32_t n_accepted, uint64_t draft_us, uint64_t verify_us) {
  if (n_drafted > max_) {
    return;
  }
  verify_[static_cast<size_t>(n_drafted)].add(static_cast<double>(verify_us));
  if (n_drafted == 0) {
    return;
  }
  draft_[static_cast<size_t>(n_drafted)].add(static_cast<double>(draft_us));
  const int32_t n_reached = std::min(n_drafted, n_accepted + 1);
  for (int32_t i = 0; i < n_reached; ++i) {
    const auto at = static_cast<size_t>(i);
    reached_[at] = kDecay * reached_[at] + 1.0;
    accepted_[at] = kDecay * accepted_[at] + (i < n_accepted ? 1.0 : 0.0);
  }
}

}  // namespace df2
