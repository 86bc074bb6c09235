#include "core/draft_length.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace df2 {

namespace {

// The length of the first drafts.
constexpr int32_t kFirstLength = 3;
// How much better than it looks drafting may be after one draft; after n it is an n-th of that.
constexpr double kDoubt = 0.5;
// A token of which the drafter says q is right q^1.7 of the time, by this much evidence, until more is known: drafters
// are surer of themselves than they should be, and those that were measured were by this much.
constexpr double kSureness = 1.7;
constexpr double kPriorTokens = 4.0;
// Tokens after which what is known of a chance fades, per token.
constexpr double kMostTokens = 150.0;
// How much evidence it takes to find that this text is not like those before: accepted tokens that were to be expected.
constexpr double kPriorLuck = 6.0;
constexpr double kLuckDecay = 0.95;
// Drafts that drafting is judged by, how they fade per cycle, and what experience counts beside them, in drafts.
constexpr size_t kMostRecent = 16;
constexpr double kFading = 0.98;
constexpr double kExperience = 6.0;
constexpr double kMostDrafts = 64.0;
// What experience an earlier session's measurements are, in samples: some, until there are new ones.
constexpr double kOldSamples = 2.0;
// After so many tokens without drafting that pays, the pair counts as one that nobody knows: what is known of it may
// have been learnt while other programs had the machine. Trying anew costs about a plain cycle.
constexpr double kMostUnpaid = 256.0;
// Drafting goes on as long as it does not look slower than this: less is within what may be lost, and giving up a
// drafter that pays costs more. Timing leaves out what a cycle costs besides its models, of which drafting saves some.
constexpr double kLeastRate = 0.97;
// Of a text, drafting may lose this share and a stake, in plain cycles. The stake is small for a pair nobody knows,
// large once drafting has gained something, and halves with each text in which it was lost.
constexpr double kShare = 0.02;
constexpr double kFirstStake = 0.5;
constexpr double kStake = 4.0;
constexpr double kGained = 1.0;
// Plain cycles anchor the comparison: two at first, because one may be disturbed. It drifts as the context grows: more
// after so many cycles, then rarer.
constexpr int64_t kFirstPlain = 2;
constexpr int64_t kFirstPlainInterval = 32;
constexpr int64_t kMostPlainInterval = 128;
// While not drafting, probes may cost this share of the time, and come at least this rarely or often.
constexpr double kProbeBudget = 0.012;
constexpr int64_t kMinProbeInterval = 8;
constexpr int64_t kMaxProbeInterval = 256;
// Probes that keep losing come up to this many times rarer.
constexpr int64_t kMaxPatience = 4;
// What having a token to verify is worth is an average over about ten drafts; another length must be better by this
// much, because the drafter's graphs are built for each.
constexpr double kGainWeight = 0.1;
constexpr double kLengthMargin = 0.01;

size_t bin_of(float q) {
  // narrower towards 1, where most accepted tokens are
  constexpr float kEdges[] = {0.2f, 0.35f, 0.5f, 0.65f, 0.8f, 0.9f, 0.97f};
  return static_cast<size_t>(std::upper_bound(std::begin(kEdges), std::end(kEdges), q) - std::begin(kEdges));
}

double assumed_chance(float q) {
  return std::pow(static_cast<double>(q), kSureness);
}

}  // namespace

DraftLength::DraftLength(int32_t max, const DraftProfile &known)
    : max_(max),
      known_(known.max() == max ? known : DraftProfile(max)),
      costs_(&known_),
      length_(std::min(kFirstLength, max)),
      last_draft_(-static_cast<int64_t>(known_.n_rested)),
      plain_interval_(kFirstPlainInterval) {
  for (std::vector<LearntCost> *costs : {&known_.draft, &known_.verify}) {
    for (LearntCost &cost : *costs) {
      cost.weight = std::min(cost.weight, kOldSamples);
    }
  }
  forget_what_did_not_pay();
  length_ = best_length();
}

void DraftLength::forget_what_did_not_pay() {
  if (known_.n_unpaid > kMostUnpaid) {
    const double plain_us = known_.plain_us;
    known_ = DraftProfile(max_);
    known_.plain_us = plain_us;
    length_ = std::min(kFirstLength, max_);
  }
}

void DraftLength::begin_text() {
  end_text(&known_);
  forget_what_did_not_pay();
  recent_.clear();
  n_expected_ = 0.0;
  n_accepted_ = 0.0;
  lost_ = 0.0;
  n_tokens_ = 0.0;
  n_behind_ = -1;
}

// What the text teaches that is only counted as a whole.
void DraftLength::end_text(DraftProfile *profile) const {
  for (const Drafted &drafted : recent_) {
    remember(drafted, profile);
  }
  if (!may_lose()) {
    profile->stake = std::max(kFirstStake, profile->stake / 2.0);
  }
}

// That a token is right if all before it were.
double DraftLength::chance(float q) const {
  const LearntChance &known = known_.chances[bin_of(q)];
  const double of_all = (kPriorTokens + known_.n_right) / (kPriorTokens + known_.n_assumed);
  const double prior = std::min(1.0, of_all * assumed_chance(q));
  return (kPriorTokens * prior + known.n_right) / (kPriorTokens + known.n_reached);
}

double DraftLength::expected_accepted(const float *q, int32_t n_verified) const {
  double n_accepted = 0.0;
  double all_right = 1.0;
  for (int32_t i = 0; i < n_verified; ++i) {
    all_right *= chance(q[i]);
    n_accepted += all_right;
  }
  return n_accepted;
}

double DraftLength::expected_tokens(const float *q, int32_t n_verified) const {
  return 1.0 + luck() * expected_accepted(q, n_verified);
}

// Accepted tokens in this text, lately, over those that were to be expected.
double DraftLength::luck() const {
  return (kPriorLuck + n_accepted_) / (kPriorLuck + n_expected_);
}

double DraftLength::change_to(int32_t n_behind) const {
  return n_behind != n_behind_ ? costs_.change() : 0.0;
}

double DraftLength::cost_of(const Drafted &drafted) const {
  return costs_.draft(static_cast<int32_t>(drafted.q.size())) + costs_.verify(drafted.n_verified) + drafted.change +
         drafted.replay;
}

// What earlier texts count, in drafts.
double DraftLength::experience() const {
  return std::min(kExperience, known_.n_drafts / 2.0);
}

DraftLength::Yield DraftLength::recent_yield() const {
  Yield yield;
  yield.n = experience();
  yield.tokens = yield.n * known_.tokens;
  yield.cost = yield.n * known_.cost;
  for (const Drafted &drafted : recent_) {
    const double weight = std::pow(kFading, static_cast<double>(cycle_ - drafted.cycle));
    yield.n += weight;
    yield.tokens += weight * expected_tokens(drafted.q.data(), drafted.n_verified);
    yield.cost += weight * cost_of(drafted);
  }
  return yield;
}

// Tokens per plain cycle's time when drafting; 0 while unknown.
double DraftLength::rate() const {
  const Yield yield = recent_yield();
  return yield.cost > 0.0 ? yield.tokens / yield.cost : 0.0;
}

// What a plain cycle's time is worth, in tokens.
double DraftLength::value_of_time() const {
  return std::max(1.0, rate());
}

// Drafting gets the benefit of the doubt while little has been seen of it.
bool DraftLength::pays() const {
  const double n_seen = known_.n_drafts + static_cast<double>(recent_.size());
  return rate() * (1.0 + kDoubt / n_seen) > kLeastRate;
}

bool DraftLength::may_lose() const {
  return lost_ < std::max(kFirstStake, known_.stake) + kShare * n_tokens_;
}

// Cycles between probes while not drafting: what a probe loses, in plain cycles, over the budget. One that would have
// paid is followed by another.
int64_t DraftLength::probe_interval() const {
  if (last_rate_ > 1.0) {
    return 1;
  }
  const Yield yield = recent_yield();
  const double loss = std::max(0.0, (yield.cost - yield.tokens) / yield.n) + costs_.change();
  return std::clamp(static_cast<int64_t>(loss / kProbeBudget) * patience_, kMinProbeInterval, kMaxProbeInterval);
}

// The one place where phases change. It looks at what was measured and at how long ago, never at the phase before: a
// cycle that failed, or that the caller's limits kept from drafting, is simply tried again.
DraftLength::Phase DraftLength::next_phase() const {
  if (recent_.empty() && known_.n_drafts == 0.0) {
    return n_plain_ < kFirstPlain ? Phase::kComparing : Phase::kTrying;
  }
  if (pays() && may_lose()) {
    const bool is_stale = cycle_ - last_plain_ >= plain_interval_ || (last_plain_ == 0 && costs_.has_surprised());
    return is_stale ? Phase::kRefreshing : Phase::kDrafting;
  }
  return may_lose() && cycle_ - last_draft_ >= probe_interval() ? Phase::kProbing : Phase::kResting;
}

// Each token more is drafted as long as having it is worth what drafting it costs.
int32_t DraftLength::best_length() const {
  if (known_.n_drafts == 0.0 && recent_.empty()) {
    return length_;
  }
  int32_t best = 1;
  double best_gain = 0.0;
  double gain_now = 0.0;
  double gain = 0.0;
  for (int32_t n = 1; n <= std::min(length_ + 1, max_); ++n) {
    gain += known_.gains[static_cast<size_t>(n)] - value_of_time() * (costs_.draft(n) - costs_.draft(n - 1));
    if (n == 1 || gain > best_gain) {
      best = n;
      best_gain = gain;
    }
    gain_now = n == length_ ? gain : gain_now;
  }
  return best_gain > gain_now + kLengthMargin ? best : length_;
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
  length_ = best_length();
  return length_;
}

// The draft is paid for: what counts is whether a token is worth more than the time its verification takes.
int32_t DraftLength::cut(const float *q, int32_t n_draft, int32_t n_replayed) const {
  const double value = value_of_time();
  const auto gain_of = [&](int32_t n) {
    return expected_tokens(q, n) - value * (costs_.verify(n_replayed + n) + change_to(n_replayed + n));
  };
  // a draft that is made to learn from it is verified in part at least
  int32_t best = phase_ == Phase::kDrafting ? 0 : 1;
  double best_gain = gain_of(best);
  for (int32_t n = best + 1; n <= n_draft; ++n) {
    const double gain = gain_of(n);
    if (gain > best_gain) {
      best = n;
      best_gain = gain;
    }
  }
  return best;
}

// Among those of all texts. By the time a draft gets here, more is known of the drafter's chances than when it was
// made.
void DraftLength::remember(const Drafted &drafted, DraftProfile *profile) const {
  profile->n_drafts = std::min(profile->n_drafts + 1.0, kMostDrafts);
  const double tokens = 1.0 + expected_accepted(drafted.q.data(), drafted.n_verified);
  profile->tokens += (tokens - profile->tokens) / profile->n_drafts;
  profile->cost += (cost_of(drafted) - profile->cost) / profile->n_drafts;
}

void DraftLength::learn_chances(const float *q, int32_t n_verified, int32_t n_accepted) {
  const int32_t n_reached = std::min(n_verified, n_accepted + 1);
  for (int32_t i = 0; i < n_reached; ++i) {
    LearntChance &known = known_.chances[bin_of(q[i])];
    const double kept = std::min(1.0, kMostTokens / (known.n_reached + 1.0));
    known.n_reached = kept * known.n_reached + 1.0;
    known.n_right = kept * known.n_right + (i < n_accepted ? 1.0 : 0.0);
    const double kept_of_all = std::min(1.0, kMostTokens / (known_.n_assumed + 1.0));
    known_.n_assumed = kept_of_all * known_.n_assumed + assumed_chance(q[i]);
    known_.n_right = kept_of_all * known_.n_right + (i < n_accepted ? 1.0 : 0.0);
  }
}

// What having each token of this draft was worth, given those before it. Tokens that were not drafted would have been
// as likely as those that were, on average.
void DraftLength::learn_gains(const float *q, int32_t n_drafted) {
  const double value = value_of_time();
  const double step = value * (costs_.verify(max_) - costs_.verify(std::max(0, max_ - 1)));
  double best = 1.0 - value * (1.0 + change_to(0));
  double all_right = 1.0;
  double mean_chance = 1.0;
  for (int32_t n = 1; n <= max_; ++n) {
    double gain = 0.0;
    if (n <= n_drafted) {
      all_right *= chance(q[n - 1]);
      mean_chance = std::pow(all_right, 1.0 / n);
      const double net = expected_tokens(q, n) - value * (costs_.verify(n) + change_to(n));
      gain = std::max(0.0, net - best);
      best = std::max(best, net);
    } else {
      all_right *= mean_chance;
      gain = std::max(0.0, luck() * all_right - step);
    }
    double &known = known_.gains[static_cast<size_t>(n)];
    known +=
        std::max(kGainWeight, 1.0 / (known_.n_drafts + static_cast<double>(recent_.size()) + 1.0)) * (gain - known);
  }
}

void DraftLength::learn_draft(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted,
                              double change) {
  learn_chances(q, n_verified, n_accepted);
  learn_gains(q, n_drafted);
  n_expected_ = kLuckDecay * n_expected_ + expected_accepted(q, n_verified);
  n_accepted_ = kLuckDecay * n_accepted_ + n_accepted;
  recent_.push_back({std::vector<float>(q, q + n_drafted), n_verified, change, 0.0, cycle_});
  last_rate_ = std::max(expected_tokens(q, n_verified), n_accepted + 1.0) / cost_of(recent_.back());
  lost_ += cost_of(recent_.back()) - (n_accepted + 1.0);
  if (lost_ < -kGained) {
    known_.stake = kStake;
    lost_ = -kGained;  // what was gained is no licence to lose as much
  }
  if (recent_.size() > kMostRecent) {
    remember(recent_.front(), &known_);
    recent_.pop_front();
  }
}

// Where costs are not what they were, what drafting yielded then says nothing.
void DraftLength::distrust_experience() {
  if (costs_.has_surprised() && !is_distrustful_) {
    is_distrustful_ = true;
    known_.n_drafts = 0.0;
    known_.stake = kFirstStake;
  }
}

// Decoding again is what the last draft's rejection cost.
void DraftLength::charge_replay(int32_t n_verified, int32_t n_behind) {
  const double cost = costs_.verify(n_behind) - costs_.verify(n_verified);
  lost_ += cost;
  if (!recent_.empty()) {
    recent_.back().replay += cost;
  }
}

void DraftLength::observe(const float *q, int32_t n_drafted, int32_t n_verified, int32_t n_accepted, int32_t n_replayed,
                          uint64_t draft_us, uint64_t verify_us) {
  const int32_t n_behind = n_replayed + n_verified;
  const double change = change_to(n_behind);
  costs_.observe(n_drafted, n_behind, change > 0.0, static_cast<double>(draft_us), static_cast<double>(verify_us));
  if (n_replayed > 0) {
    charge_replay(n_verified, n_behind);
  }
  if (n_behind == 0 && costs_.is_known()) {
    ++n_plain_;
    plain_interval_ = n_plain_ > kFirstPlain ? std::min(2 * plain_interval_, kMostPlainInterval) : kFirstPlainInterval;
    last_plain_ = cycle_;
  }
  if (n_drafted > 0 && costs_.is_known()) {
    learn_draft(q, n_drafted, n_verified, n_accepted, change);
    distrust_experience();
  } else if (n_drafted == 0) {
    lost_ += change;
  }
  n_tokens_ += n_accepted + 1.0;
  const bool has_paid = phase_ == Phase::kDrafting || phase_ == Phase::kRefreshing;
  known_.n_unpaid = has_paid ? 0.0 : known_.n_unpaid + n_accepted + 1.0;
  n_behind_ = n_behind;
}

DraftProfile DraftLength::profile() const {
  DraftProfile profile = known_;
  end_text(&profile);
  profile.n_rested = static_cast<double>(cycle_ - last_draft_);
  return profile;
}

}  // namespace df2
