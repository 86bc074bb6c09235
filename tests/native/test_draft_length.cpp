// The draft-length choice on simulated machines: it must find what is best, and not lose to plain decoding.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "core/draft_length.h"

namespace {

constexpr int32_t kMax = 7;

struct Machine {
  double plain_us;
  double per_token_us;  // of a verify, for each drafted token
  double draft_us;
  double acceptance;  // of a position, on average
  double sharpness;   // how much the drafter knows: 0 is nothing, 1 is all of it
  double conceit;     // its q is the chance of being right to the power of 1 / conceit
  int phase = 0;      // every other so many cycles the clock is slower; 0: never
  double growth = 0;  // of the plain cost, per token, as contexts make it
  double first = 1;   // by how much the first plain cycle seems slower than it is
};

struct Outcome {
  double speed_up;  // against plain decoding, exploration included
  double mean_length;
  double best_fixed;  // speed-up of the best fixed length
};

class Simulation {
 public:
  Simulation(const Machine &machine, uint32_t seed) : machine_(machine), generator_(seed) {}

  // With the chooser, or with a fixed length.
  double run(int n_cycles, df2::DraftLength *chooser, int32_t fixed, double *mean_length) {
    double time_us = 0.0;
    double plain_time_us = 0.0;
    bool has_seen_plain = false;
    double n_tokens = 0.0;
    double n_verified = 0.0;
    for (int i = 0; i < n_cycles; ++i) {
      const int32_t n = chooser != nullptr ? chooser->choose() : fixed;
      CHECK(n >= 0 && n <= kMax);
      draw_draft();
      const int32_t n_kept = chooser != nullptr && n > 0 ? chooser->cut(q_.data(), n) : n;
      CHECK(n_kept >= 0 && n_kept <= n);
      const int32_t n_accepted = std::min(n_right_, n_kept);
      const double draft_us = n > 0 ? machine_.draft_us : 0.0;
      const double plain_us = machine_.plain_us * (1.0 + machine_.growth * n_tokens);
      const double verify_us = plain_us + machine_.per_token_us * n_kept;
      if (chooser != nullptr) {
        const bool is_slow = machine_.phase > 0 && i / machine_.phase % 2 == 1;
        const double first = n_kept == 0 && !has_seen_plain ? machine_.first : 1.0;
        has_seen_plain = has_seen_plain || n_kept == 0;
        const double noise = first * (is_slow ? 1.35 : 1.0) * (1.0 + 0.1 * uniform() + (uniform() < 0.02 ? 3.0 : 0.0));
        chooser->observe(q_.data(), n, n_kept, n_accepted, static_cast<uint64_t>(draft_us * noise),
                         static_cast<uint64_t>(verify_us * noise));
      }
      time_us += draft_us + verify_us;
      plain_time_us += plain_us * (n_accepted + 1);
      n_tokens += n_accepted + 1;
      n_verified += n_kept;
    }
    *mean_length = n_verified / n_cycles;
    return plain_time_us / time_us;
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(generator_); }

  // Each position's chance of being right lies between the average and certainty, by how much the drafter knows.
  void draw_draft() {
    bool all_right = true;
    n_right_ = 0;
    for (float &q : q_) {
      const bool is_right = uniform() < machine_.acceptance;
      const double chance =
          machine_.sharpness * (is_right ? 0.97 : 0.03) + (1.0 - machine_.sharpness) * machine_.acceptance;
      q = static_cast<float>(std::pow(chance, 1.0 / machine_.conceit));
      all_right = all_right && is_right;
      n_right_ += all_right ? 1 : 0;
    }
  }

  Machine machine_;
  std::mt19937 generator_;
  std::vector<float> q_ = std::vector<float>(kMax);
  int32_t n_right_ = 0;
};

Outcome run(const Machine &machine, int n_cycles, uint32_t seed) {
  Outcome outcome = {};
  df2::DraftLength chooser(kMax);
  outcome.speed_up = Simulation(machine, seed).run(n_cycles, &chooser, 0, &outcome.mean_length);
  for (int32_t n = 0; n <= kMax; ++n) {
    double unused = 0.0;
    outcome.best_fixed = std::max(outcome.best_fixed, Simulation(machine, seed).run(n_cycles, nullptr, n, &unused));
  }
  return outcome;
}

void test_machine(const char *name, const Machine &machine, int n_cycles, double of_best_fixed, double least) {
  double speed_up = 0.0;
  double best_fixed = 0.0;
  double mean_length = 0.0;
  double worst = 1e9;
  constexpr int kSeeds = 10;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run(machine, n_cycles, seed);
    speed_up += outcome.speed_up / kSeeds;
    best_fixed += outcome.best_fixed / kSeeds;
    mean_length += outcome.mean_length / kSeeds;
    worst = std::min(worst, outcome.speed_up);
  }
  std::printf("%-36s %4d cycles: %.3f x plain (worst %.3f), best fixed length %.3f, mean length %.2f\n", name, n_cycles,
              speed_up, worst, best_fixed, mean_length);
  CHECK(speed_up > of_best_fixed * best_fixed);
  CHECK(worst > least);
}

}  // namespace

int main() {
  // verifying costs nearly as much as decoding: drafting cannot pay
  test_machine("dear verify", {8000, 4500, 3000, 0.4, 0.5, 2.0}, 600, 0.98, 0.97);
  // cheap verify, well-accepted drafts: long drafts pay
  test_machine("cheap verify", {8000, 500, 1500, 0.85, 0.5, 2.0}, 600, 1.0, 2.2);
  // in between a short draft is best, or one as long as the drafter is sure
  test_machine("middling, knowing", {8000, 2000, 1500, 0.6, 0.8, 2.0}, 600, 1.05, 1.0);
  test_machine("middling, unknowing", {8000, 2000, 1500, 0.6, 0.0, 2.0}, 600, 0.9, 0.97);
  // nothing is ever accepted, whatever the drafter says of it
  test_machine("useless", {8000, 300, 1000, 0.0, 0.5, 2.0}, 600, 0.97, 0.97);
  test_machine("useless and sure", {8000, 300, 1000, 0.0, 0.0, 1e9}, 600, 0.97, 0.97);
  // a drafter without a selector has one candidate per position and is always sure (version 1)
  test_machine("always sure", {8000, 500, 1500, 0.7, 0.0, 1e9}, 600, 0.9, 1.5);
  // a processor that changes its speed; times are counted as if it did not
  test_machine("changing speed", {4200, 300, 1350, 0.42, 0.5, 2.0, 70}, 600, 1.0, 0.97);
  test_machine("changing speed, useless", {4200, 300, 1350, 0.0, 0.5, 2.0, 70}, 600, 0.97, 0.97);
  test_machine("changing speed often", {4200, 300, 1350, 0.42, 0.5, 2.0, 15}, 600, 1.0, 0.97);
  // a context that doubles the cost, and drafts that are worth nothing: costs seen long ago must not look cheap
  test_machine("growing context, useless", {4200, 300, 1350, 0.1, 0.0, 2.0, 0, 1.0 / 300}, 300, 0.97, 0.95);
  // nothing to compare with but one cycle that was disturbed
  test_machine("disturbed beginning", {8000, 4500, 3000, 0.4, 0.0, 2.0, 0, 0.0, 4.0}, 300, 0.97, 0.95);
  test_machine("disturbed beginning, useless", {8000, 300, 1000, 0.0, 0.0, 2.0, 0, 0.0, 10.0}, 300, 0.97, 0.96);
  // short answers
  test_machine("short, demo pair", {4200, 300, 1350, 0.42, 0.5, 2.0}, 60, 0.93, 0.95);
  test_machine("short, useless", {4200, 300, 1350, 0.0, 0.5, 2.0}, 60, 0.95, 0.95);
  return report("draft_length");
}
