// The draft-length choice on simulated machines: it must find the best length, and not lose to plain decoding.
#include <random>

#include "check.h"
#include "core/draft_length.h"

namespace {

struct Machine {
  double plain_us;
  double per_token_us;  // of a verify, for each drafted token
  double draft_us;
  double acceptance;  // of every position
};

struct Outcome {
  double speed_up;  // against plain decoding, exploration included
  double mean_length;
};

Outcome run(const Machine &machine, int n_cycles, uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  df2::DraftLength chooser(7);
  double time_us = 0.0;
  double n_tokens = 0.0;
  double n_drafted = 0.0;
  for (int i = 0; i < n_cycles; ++i) {
    const int32_t n = chooser.choose();
    CHECK(n >= 0 && n <= 7);
    int32_t n_accepted = 0;
    while (n_accepted < n && uniform(generator) < machine.acceptance) {
      ++n_accepted;
    }
    const double noise = 1.0 + 0.1 * uniform(generator) + (uniform(generator) < 0.02 ? 3.0 : 0.0);
    const double draft_us = n > 0 ? machine.draft_us : 0.0;
    const double verify_us = machine.plain_us + machine.per_token_us * n;
    chooser.observe(n, n_accepted, static_cast<uint64_t>(draft_us * noise), static_cast<uint64_t>(verify_us * noise));
    time_us += draft_us + verify_us;
    n_tokens += n_accepted + 1;
    n_drafted += n;
  }
  return {n_tokens * machine.plain_us / time_us, n_drafted / n_cycles};
}

}  // namespace

int main() {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    // verifying costs nearly as much as decoding: drafting cannot pay
    const Outcome hopeless = run({8000, 4500, 3000, 0.4}, 600, seed);
    CHECK(hopeless.speed_up > 0.97);
    CHECK(hopeless.mean_length < 0.2);
    // cheap verify, well-accepted drafts: long drafts pay
    const Outcome good = run({8000, 500, 1500, 0.85}, 600, seed);
    CHECK(good.speed_up > 2.2);
    CHECK(good.mean_length > 5.0);
    // in between a short draft is best
    const Outcome middling = run({8000, 2000, 1500, 0.6}, 600, seed);
    CHECK(middling.speed_up > 1.0);
    CHECK(middling.mean_length < 4.0);
    // nothing is ever accepted
    const Outcome useless = run({8000, 300, 1000, 0.0}, 600, seed);
    CHECK(useless.speed_up > 0.97);
  }
  return report("draft_length");
}
