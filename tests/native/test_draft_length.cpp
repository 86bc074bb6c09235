// The draft-length choice: on simulated machines it must find what is best, and not lose to plain decoding; each of its
// transitions is brought about once; and a few hundred choices are as they were.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "check.h"
#include "core/draft_length.h"

namespace {

constexpr int32_t kMax = 7;

using Phase = df2::DraftLength::Phase;

char letter(Phase phase) {
  return "TCDFRP"[static_cast<int>(phase)];  // trying, comparing, drafting, refreshing, resting, probing
}

// Every transition there is, as the phases before and after.
const std::set<std::string> kTransitions = {
    "TT", "TC", "TD", "TR", "CC", "CT", "CD", "CR", "DD", "DC",
    "DF", "DR", "FF", "FD", "FR", "RR", "RP", "RD", "PD", "PR",
};

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
      const Phase before = chooser != nullptr ? chooser->phase() : Phase::kTrying;
      const int32_t n = chooser != nullptr ? chooser->choose() : fixed;
      CHECK(chooser == nullptr || kTransitions.count({letter(before), letter(chooser->phase())}) == 1);
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

void check_same(const std::string &found, const std::string &expected) {
  CHECK(found == expected);
  if (found != expected) {
    std::fprintf(stderr, "  expected %s\n  found    %s\n", expected.c_str(), found.c_str());
  }
}

// Cycles that go as they are told to.
struct Story {
  df2::DraftLength length = df2::DraftLength(3);
  bool is_right = true;    // all drafted tokens are kept, or none
  bool has_room = true;    // the caller's limits allow a draft
  bool does_fail = false;  // nothing comes of a cycle
  uint64_t plain_us = 1000;
  std::set<std::string> transitions;

  // The phases that the next cycles must go through.
  void expect(const std::string &phases) {
    std::string found;
    for (size_t i = 0; i < phases.size(); ++i) {
      found += cycle();
    }
    check_same(found, phases);
  }

 private:
  char cycle() {
    const float q[] = {0.9f, 0.9f, 0.9f};
    const char before = letter(length.phase());
    const int32_t n = length.choose();
    const char phase = letter(length.phase());
    transitions.insert({before, phase});
    CHECK((n > 0) == (std::strchr("TDP", phase) != nullptr));
    const int32_t n_drafted = has_room ? n : 0;
    const int32_t n_verified = n_drafted > 0 ? length.cut(q, n_drafted) : 0;
    CHECK(n_verified > 0 || n_drafted == 0 || phase == 'D');  // what is drafted to learn from is verified in part
    if (!does_fail) {
      const auto per_token_us = static_cast<uint64_t>(100 * n_verified);
      length.observe(q, n_drafted, n_verified, is_right ? n_verified : 0, n_drafted > 0 ? 200 : 0,
                     plain_us + per_token_us);
    }
    return phase;
  }
};

std::string times(int n, char phase) {
  return std::string(static_cast<size_t>(n), phase);
}

const std::string kBeginning = "TCTCDDDC";  // drafts get the benefit of the doubt, and two more plain cycles

Story story_of_a_drafter_that_pays() {
  Story story;
  story.expect(kBeginning);
  // the 64th cycle since the last plain one is plain again, and a failed one is tried again
  story.expect(times(63, 'D'));
  story.does_fail = true;
  story.expect("FFF");
  story.does_fail = false;
  story.expect("F" + times(63, 'D') + "FD");
  return story;
}

Story story_of_a_drafter_that_does_not_pay() {
  Story story;
  story.is_right = false;
  story.expect(kBeginning);
  // probes that lose come rarer, until they are four times as rare
  story.expect(times(18, 'R') + "P" + times(39, 'R') + "P" + times(75, 'R') + "P" + times(75, 'R') + "P");
  return story;
}

Story story_of_a_drafter_that_comes_to_pay() {
  Story story;
  story.is_right = false;
  story.expect(kBeginning + times(18, 'R') + "P" + times(39, 'R'));
  story.is_right = true;
  story.expect("PDDD");
  // and no longer does: probes are as frequent as at first
  story.is_right = false;
  story.expect(times(15, 'D') + times(7, 'R') + "P" + times(7, 'R') + "P" + times(19, 'R') + "P");
  return story;
}

Story story_of_a_target_that_becomes_dear() {
  Story story;
  story.is_right = false;
  story.expect(kBeginning + "R");
  story.is_right = true;
  story.plain_us = 20000;
  story.expect("RDDDD");
  return story;
}

Story story_of_a_target_that_becomes_cheap() {
  Story story;
  story.expect(kBeginning + times(30, 'D'));
  story.is_right = false;
  story.expect(times(33, 'D'));
  story.plain_us = 10;
  story.expect("FR");
  return story;
}

// The caller's limits: plain cycles enough to compare with, before the first draft.
Story story_of_no_room_at_first(uint64_t plain_us) {
  Story story;
  story.plain_us = plain_us;
  story.is_right = false;
  story.has_room = false;
  story.expect("TTT");
  story.has_room = true;
  story.expect(plain_us == 1000 ? "TTD" : "TTR");
  return story;
}

Story story_of_a_failure() {
  Story story;
  story.does_fail = true;
  story.expect("TT");
  story.does_fail = false;
  story.expect("T");
  story.does_fail = true;
  story.expect("CC");
  story.does_fail = false;
  story.expect(kBeginning.substr(1));
  return story;
}

// How many tokens each of n cycles verifies, in digits, a dot for cycles that do not draft; on a noisy machine, with a
// drafter that is right about as often as it says.
std::string choices(uint32_t seed, uint32_t draft_us, uint32_t per_token_us, int n) {
  uint32_t state = seed;
  const auto below = [&state](uint32_t end) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % end;
  };
  df2::DraftLength length(kMax);
  std::string found;
  for (int i = 0; i < n; ++i) {
    float q[kMax];
    int32_t n_right = 0;
    for (int32_t k = 0; k < kMax; ++k) {
      const uint32_t percent = 30 + below(70);
      q[k] = static_cast<float>(percent) / 100.0f;
      n_right += n_right == k && below(100) < percent ? 1 : 0;
    }
    const int32_t n_drafted = length.choose();
    const int32_t n_verified = n_drafted > 0 ? length.cut(q, n_drafted) : 0;
    const uint32_t verify_us = 4000 + below(400) + per_token_us * static_cast<uint32_t>(n_verified);
    length.observe(q, n_drafted, n_verified, std::min(n_verified, n_right), n_drafted > 0 ? draft_us + below(100) : 0,
                   verify_us);
    found += n_drafted > 0 ? static_cast<char>('0' + n_verified) : '.';
  }
  return found;
}

void test_choices(uint32_t seed, uint32_t draft_us, uint32_t per_token_us, const std::string &expected) {
  check_same(choices(seed, draft_us, per_token_us, static_cast<int>(expected.size())), expected);
}

void test_transitions() {
  std::set<std::string> seen;
  for (const Story &story :
       {story_of_a_drafter_that_pays(), story_of_a_drafter_that_does_not_pay(), story_of_a_drafter_that_comes_to_pay(),
        story_of_a_target_that_becomes_dear(), story_of_a_target_that_becomes_cheap(), story_of_no_room_at_first(1000),
        story_of_no_room_at_first(100), story_of_a_failure()}) {
    seen.insert(story.transitions.begin(), story.transitions.end());
  }
  for (const std::string &transition : kTransitions) {
    CHECK(seen.count(transition) == 1);
  }
  CHECK(seen.size() == kTransitions.size());
}

}  // namespace

int main() {
  test_transitions();
  // choices as they were when this was written: a change of them is a decision, to be made on measurements
  test_choices(
      1, 500, 300,
      "2.3.146.406333034622642216515534154222415133112251216426614113466612430434342315531413133131234415353233311123");
  test_choices(
      2, 1300, 800,
      "1.2.123.000234022221242032120244123322400312511323123021313223233023232121333222314300123231334420322122414224");
  test_choices(
      3, 2500, 1500,
      "1.1.0.........................................1.............................................................1.");
  test_choices(
      4, 1900, 900,
      "1.1.312.210011311132221232212344233142451112324324412442211214153142414245013213332331413311143421433332342434");
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
