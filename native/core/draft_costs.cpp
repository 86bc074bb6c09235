#include "core/draft_costs.h"

#include <algorithm>

namespace df2 {

namespace {

// Before they are measured: a token more to verify, and to draft, and another number of tokens than before.
constexpr LearntCost kFirstVerifySlope = {0.15, 2.0};
constexpr LearntCost kFirstDraftSlope = {0.02, 4.0};
constexpr double kFirstChange = 0.08;

// A sample never weighs less than this, so that costs follow what changes slowly.
constexpr double kLeastWeight = 0.1;
// The speed changes more often than the ratios.
constexpr double kLeastSpeedWeight = 0.2;
// What other programs disturb takes longer, never shorter. So a sample counts as at most this much above what is known,
// and one as much below shows that what is known was disturbed.
constexpr double kOutlier = 1.5;
// So much above what was known, twice in a row, is neither noise nor a disturbance.
constexpr double kSurprise = 0.35;
constexpr double kMostChange = 0.3;

// n: samples behind the mean, as far as they count.
double mean_with(double mean, double n, double sample, double least_weight) {
  if (sample < mean / kOutlier) {
    return sample;
  }
  return mean + std::max(least_weight, 1.0 / (n + 1.0)) * (std::min(sample, kOutlier * mean) - mean);
}

}  // namespace

double DraftCosts::change() const {
  return known_.change.weight > 0.0 ? known_.change.value : kFirstChange;
}

// Its own measurements, and the line through all of them as one more: a cost that was measured once, on a bad moment,
// would otherwise never be measured again.
double DraftCosts::verify(int32_t n) const {
  if (n == 0) {
    return 1.0;
  }
  double rise = kFirstVerifySlope.weight * kFirstVerifySlope.value;
  double run = kFirstVerifySlope.weight;
  for (int32_t i = 1; i <= known_.max(); ++i) {
    const LearntCost &cost = known_.verify[static_cast<size_t>(i)];
    rise += cost.weight * i * (cost.value - 1.0);
    run += cost.weight * i * i;
  }
  const double line = std::max(1.0, 1.0 + rise / run * n);
  if (n > known_.max()) {
    return line;
  }
  const LearntCost &own = known_.verify[static_cast<size_t>(n)];
  return std::max(1.0, (own.weight * own.value + line) / (own.weight + 1.0));
}

double DraftCosts::draft(int32_t n) const {
  double weight = 0.0;
  double mean_n = 0.0;
  double mean = 0.0;
  for (int32_t i = 1; i <= known_.max(); ++i) {
    const LearntCost &cost = known_.draft[static_cast<size_t>(i)];
    weight += cost.weight;
    mean_n += cost.weight * i;
    mean += cost.weight * cost.value;
  }
  if (weight == 0.0) {
    return 0.0;
  }
  mean_n /= weight;
  mean /= weight;
  double rise = kFirstDraftSlope.weight * kFirstDraftSlope.value;
  double run = kFirstDraftSlope.weight;
  for (int32_t i = 1; i <= known_.max(); ++i) {
    const LearntCost &cost = known_.draft[static_cast<size_t>(i)];
    rise += cost.weight * (i - mean_n) * (cost.value - mean);
    run += cost.weight * (i - mean_n) * (i - mean_n);
  }
  return std::max(0.0, mean + std::max(0.0, rise / run) * (n - mean_n));
}

// From whatever of the cycle has a known ratio to a plain one.
void DraftCosts::follow_speed(int32_t n_drafted, int32_t n_verified, double change, double draft_us, double verify_us) {
  double us = 0.0;
  double expected = 0.0;
  if (n_verified == 0 || known_.verify[static_cast<size_t>(n_verified)].weight > 0.0) {
    us += verify_us;
    expected += verify(n_verified) + change;
  }
  if (n_drafted > 0 && known_.draft[static_cast<size_t>(n_drafted)].weight > 0.0) {
    us += draft_us;
    expected += known_.draft[static_cast<size_t>(n_drafted)].value;
  }
  if (expected > 0.0 && us > 0.0) {
    known_.plain_us =
        n_speeds_ > 0.0 ? mean_with(known_.plain_us, n_speeds_, us / expected, kLeastSpeedWeight) : us / expected;
    n_speeds_ += 1.0;
  }
  // verifying more is never cheaper than plain decoding: if it looks so, that was measured on a bad moment
  if (n_verified > 0 && verify_us > 0.0) {
    known_.plain_us = std::min(known_.plain_us, verify_us);
  }
}

void DraftCosts::learn_change(int32_t n_verified, double verify) {
  const LearntCost &own = known_.verify[static_cast<size_t>(n_verified)];
  if (n_speeds_ < 2.0 || (n_verified > 0 && own.weight == 0.0)) {
    return;
  }
  const double rest = verify - (n_verified == 0 ? 1.0 : own.value);
  const double most = std::max(kMostChange, 2.0 * change());
  if (known_.change.weight == 0.0) {
    known_.change = {kFirstChange, 1.0};
  }
  known_.change.value += kLeastWeight * (std::clamp(rest, 0.0, most) - known_.change.value);
}

void DraftCosts::learn(LearntCost *cost, double sample, int32_t *n_surprises) {
  const bool is_known = cost->weight > 0.0;
  const bool is_off = is_known && sample > (1.0 + kSurprise) * cost->value;
  *n_surprises = is_off ? *n_surprises + 1 : 0;
  has_surprised_ = has_surprised_ || *n_surprises >= 2;
  cost->value = is_known ? mean_with(cost->value, cost->weight, sample, kLeastWeight) : sample;
  cost->weight = std::min(cost->weight + 1.0, 1.0 / kLeastWeight);
}

// change: 0 if there was none.
void DraftCosts::learn_verify(int32_t n_verified, double change, double verify_us) {
  if (!is_known()) {
    return;
  }
  const double verified = verify_us / known_.plain_us;
  if (change > 0.0) {
    learn_change(n_verified, verified);
  }
  if (n_verified > 0) {
    LearntCost &cost = known_.verify[static_cast<size_t>(n_verified)];
    const double sample = std::max(1.0, verified - change);
    learn(&cost, cost.weight > 0.0 ? sample : std::min(sample, 2.0 * verify(n_verified)), &n_verify_surprises_);
  }
}

void DraftCosts::observe(int32_t n_drafted, int32_t n_verified, bool is_change, double draft_us, double verify_us) {
  if (n_verified <= known_.max()) {
    const double change = is_change ? this->change() : 0.0;
    follow_speed(n_drafted, n_verified, change, draft_us, verify_us);
    learn_verify(n_verified, change, verify_us);
  }
  if (n_drafted > 0 && is_known()) {
    learn(&known_.draft[static_cast<size_t>(n_drafted)], draft_us / known_.plain_us, &n_draft_surprises_);
  }
}

}  // namespace df2
