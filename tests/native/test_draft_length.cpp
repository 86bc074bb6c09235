// The draft-length choice: on simulated machines it must find what is best, and not lose to plain decoding, in short
// texts too and whatever earlier sessions have learnt; each of its transitions is brought about once; and a few hundred
// choices are as they were.
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
  return "CTDFRP"[static_cast<int>(phase)];  // comparing, trying, drafting, refreshing, resting, probing
}

// The transitions, as the phases before and after. Others are not impossible, but nothing here comes upon them.
const std::set<std::string> kTransitions = {
    "CC", "CT", "CD", "CR", "CP", "TT", "TD", "TR", "DD", "DF", "DR",
    "DP", "FF", "FD", "RR", "RP", "RD", "PD", "PR", "PP", "PF",
};

std::set<std::string> seen_transitions;

void check_transition(Phase before, Phase after) {
  const std::string transition = {letter(before), letter(after)};
  CHECK(kTransitions.count(transition) == 1);
  seen_transitions.insert(transition);
}

struct Machine {
  double plain_us;
  double per_token_us;  // of a verify, for each drafted token
  double draft_us;
  double acceptance;       // of a position, on average
  double sharpness;        // how much the drafter knows: 0 is nothing, 1 is all of it
  double conceit;          // its q is the chance of being right to the power of 1 / conceit
  int phase = 0;           // every other so many cycles the clock is slower; 0: never
  double growth = 0;       // of the plain cost, per token, as contexts make it
  double first = 1;        // by how much the first plain cycle seems slower than it is
  double change_us = 400;  // of verifying another number of tokens than the cycle before
  int turn = 0;            // from this token on nothing is accepted; 0: never
  bool replays = false;    // tokens accepted before a rejection are decoded again with the next verify
};

struct Outcome {
  double speed_up;  // against plain decoding, exploration included
  double mean_length;
  double best_fixed;  // speed-up of the best fixed length
};

class Simulation {
 public:
  Simulation(const Machine &machine, uint32_t seed) : machine_(machine), generator_(seed) {}

  // A text of so many tokens, with the chooser, or with a fixed length.
  double run(int n_tokens_wanted, df2::DraftLength *chooser, int32_t fixed, double *mean_length) {
    double time_us = 0.0;
    double plain_time_us = machine_.change_us;
    bool has_seen_plain = false;
    double n_tokens = 0.0;
    double n_verified = 0.0;
    int32_t last_behind = -1;
    int32_t n_replayed = 0;
    int n_cycles = 0;
    for (; n_tokens < n_tokens_wanted; ++n_cycles) {
      const int i = n_cycles;
      const int32_t room = static_cast<int32_t>(n_tokens_wanted - n_tokens) - 1;
      const bool is_full = n_replayed > kMax;  // as a session has it: these are decoded for good
      const int32_t n = is_full ? 0 : std::min(room, chooser != nullptr ? chosen(chooser) : fixed);
      CHECK(n >= 0 && n <= kMax);
      draw_draft(machine_.turn > 0 && n_tokens >= machine_.turn ? 0.0 : machine_.acceptance);
      const int32_t n_kept = chooser != nullptr && n > 0 ? chooser->cut(q_.data(), n, n_replayed) : n;
      CHECK(n_kept >= 0 && n_kept <= n);
      const int32_t n_accepted = std::min(n_right_, n_kept);
      const double draft_us = n > 0 ? machine_.draft_us : 0.0;
      const double plain_us = machine_.plain_us * (1.0 + machine_.growth * n_tokens);
      const int32_t n_behind = n_replayed + n_kept;
      const double verify_us =
          plain_us + machine_.per_token_us * n_behind + (n_behind != last_behind ? machine_.change_us : 0.0);
      last_behind = n_behind;
      if (chooser != nullptr) {
        const bool is_slow = machine_.phase > 0 && i / machine_.phase % 2 == 1;
        const double first = n_behind == 0 && !has_seen_plain ? machine_.first : 1.0;
        has_seen_plain = has_seen_plain || n_behind == 0;
        const double noise = first * (is_slow ? 1.35 : 1.0) * (1.0 + 0.1 * uniform() + (uniform() < 0.02 ? 3.0 : 0.0));
        chooser->observe(q_.data(), n, n_kept, n_accepted, n_replayed, static_cast<uint64_t>(draft_us * noise),
                         static_cast<uint64_t>(verify_us * noise));
      }
      n_replayed = machine_.replays && n_accepted < n_kept ? n_replayed + n_accepted + 1 : 0;
      time_us += draft_us + verify_us;
      plain_time_us += plain_us * (n_accepted + 1);
      n_tokens += n_accepted + 1;
      n_verified += n_kept;
    }
    *mean_length = n_verified / n_cycles;
    return plain_time_us / time_us;
  }

 private:
  static int32_t chosen(df2::DraftLength *chooser) {
    const Phase before = chooser->phase();
    const int32_t n = chooser->choose();
    check_transition(before, chooser->phase());
    return n;
  }

  double uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(generator_); }

  // Each position's chance of being right lies between the average and certainty, by how much the drafter knows.
  void draw_draft(double acceptance) {
    bool all_right = true;
    n_right_ = 0;
    for (float &q : q_) {
      const bool is_right = uniform() < acceptance;
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

// In a session of its own. known: what earlier ones have learnt; what this one does is added. Returns the speed-up.
double run(const Machine &machine, int n_tokens, uint32_t seed, df2::DraftProfile *known, double *mean_length) {
  df2::DraftLength chooser(kMax, *known);
  const double speed_up = Simulation(machine, seed).run(n_tokens, &chooser, 0, mean_length);
  *known = chooser.profile();
  return speed_up;
}

// By a program that has never met the pair.
Outcome run(const Machine &machine, int n_tokens, uint32_t seed) {
  Outcome outcome = {};
  df2::DraftProfile nothing;
  outcome.speed_up = run(machine, n_tokens, seed, &nothing, &outcome.mean_length);
  for (int32_t n = 0; n <= kMax; ++n) {
    double unused = 0.0;
    outcome.best_fixed = std::max(outcome.best_fixed, Simulation(machine, seed).run(n_tokens, nullptr, n, &unused));
  }
  return outcome;
}

// What was learnt while other programs had the machine is not believed for ever.
void test_recovery() {
  const Machine good = {4200, 300, 1350, 0.7, 0.5, 2.0};
  Machine busy = good;
  busy.per_token_us = 6000;
  busy.draft_us = 12000;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    df2::DraftProfile known;
    double mean_length = 0.0;
    run(busy, 300, seed, &known, &mean_length);
    run(good, 128, seed + 100, &known, &mean_length);
    run(good, 128, seed + 200, &known, &mean_length);
    CHECK(run(good, 128, seed + 300, &known, &mean_length) > 1.3);
  }
}

Machine replaying(Machine machine) {
  machine.replays = true;
  return machine;
}

void test_machine(const char *name, const Machine &machine, int n_tokens, double of_best_fixed, double least) {
  double speed_up = 0.0;
  double best_fixed = 0.0;
  double mean_length = 0.0;
  double worst = 1e9;
  constexpr int kSeeds = 10;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const Outcome outcome = run(machine, n_tokens, seed);
    speed_up += outcome.speed_up / kSeeds;
    best_fixed += outcome.best_fixed / kSeeds;
    mean_length += outcome.mean_length / kSeeds;
    worst = std::min(worst, outcome.speed_up);
  }
  std::printf("%-36s %4d tokens: %.3f x plain (worst %.3f), best fixed length %.3f, mean length %.2f\n", name, n_tokens,
              speed_up, worst, best_fixed, mean_length);
  CHECK(speed_up > of_best_fixed * best_fixed);
  CHECK(worst > least);
}

// What drafting must reach, times plain decoding, in texts of 16, 32 and 64 tokens, on average: in the first text, and
// in later ones, each in a session of its own that knows what those before have learnt.
struct Promise {
  double first[3];
  double later[3];
};

// before: the machine that the first text's profile comes from; null: the pair is met for the first time.
void test_short_texts(const char *name, const Machine &machine, const Promise &promise, const Machine *before) {
  constexpr int kLengths[] = {16, 32, 64};
  constexpr uint32_t kSeeds = 20;
  constexpr uint32_t kTexts = 12;
  for (size_t i = 0; i < 3; ++i) {
    double first = 0.0;
    double later = 0.0;
    double unused = 0.0;
    for (uint32_t seed = 0; seed < kSeeds; ++seed) {
      df2::DraftProfile known;
      for (uint32_t text = 0; before != nullptr && text < 4; ++text) {
        run(*before, 128, 1000 + seed * kTexts + text, &known, &unused);
      }
      for (uint32_t text = 0; text < kTexts; ++text) {
        const double speed_up = run(machine, kLengths[i], seed * kTexts + text, &known, &unused);
        (text == 0 ? first : later) += speed_up / (text == 0 ? kSeeds : kSeeds * (kTexts - 1));
      }
    }
    std::printf("%-36s %4d tokens: %.3f x plain in the first text, %.3f in later ones\n", name, kLengths[i], first,
                later);
    CHECK(first > promise.first[i]);
    CHECK(later > promise.later[i]);
  }
}

Machine with(Machine machine, double Machine::*member, double value) {
  machine.*member = value;
  return machine;
}

void test_promise() {
  // SmolLM2 with the kernels, and a drafter of which 57 % of the first tokens are right; and relatives of it
  const Machine pays = {3200, 430, 920, 0.57, 0.7, 1.7};
  const Machine useless = with(pays, &Machine::acceptance, 0.0);
  const Machine sure = with(with(useless, &Machine::sharpness, 0.0), &Machine::conceit, 1e9);
  const Machine rarely = with(pays, &Machine::acceptance, 0.35);
  const Machine dear = with(pays, &Machine::draft_us, 2700);
  const Machine dear_useless = with(useless, &Machine::draft_us, 2700);
  Machine turning = pays;
  turning.turn = 20;

  // never met: plain decoding has to be measured, and a draft to be tried; that is all there is to lose
  const Promise known_from_then_on = {{0.92, 0.95, 0.97}, {0.97, 0.97, 0.97}};
  test_short_texts("useless", useless, known_from_then_on, nullptr);
  test_short_texts("useless and sure", sure, known_from_then_on, nullptr);
  test_short_texts("useless, growing context", with(useless, &Machine::growth, 0.01), known_from_then_on, nullptr);
  test_short_texts("useless, dear drafts", dear_useless, known_from_then_on, nullptr);
  test_short_texts("accepted rarely", rarely, known_from_then_on, nullptr);
  test_short_texts("dear drafts", dear, known_from_then_on, nullptr);
  test_short_texts("useless after 20 tokens", turning, known_from_then_on, nullptr);
  test_short_texts("pays", pays, {{1.05, 1.15, 1.2}, {1.3, 1.35, 1.4}}, nullptr);

  // an earlier session's measurements are wrong, or of a machine at another speed
  const Promise holds = {{0.97, 0.97, 0.97}, {0.97, 0.97, 0.97}};
  const Promise pays_on = {{1.1, 1.1, 1.1}, {1.15, 1.15, 1.15}};
  Machine slow = pays;
  for (double Machine::*member :
       {&Machine::plain_us, &Machine::per_token_us, &Machine::draft_us, &Machine::change_us}) {
    slow.*member *= 2.0;
  }
  test_short_texts("twice as slow as known", slow, pays_on, &pays);
  test_short_texts("twice as fast as known", pays, pays_on, &slow);
  for (const auto &[name, member] :
       {std::pair("plain", &Machine::plain_us), std::pair("verify", &Machine::per_token_us),
        std::pair("draft", &Machine::draft_us)}) {
    const Machine twice = with(pays, member, 2.0 * pays.*member);
    test_short_texts((std::string(name) + ": half of what is known").c_str(), pays, holds, &twice);
    test_short_texts((std::string(name) + ": twice what is known").c_str(), twice, holds, &pays);
  }
  // a drafter that paid a little, and does not where drafting costs twice as much or plain decoding half
  const Promise found_out = {{0.9, 0.92, 0.92}, {0.94, 0.94, 0.96}};
  test_short_texts("paid a little, verify: twice", with(rarely, &Machine::per_token_us, 2.0 * rarely.per_token_us),
                   holds, &rarely);
  test_short_texts("paid a little, draft: twice", with(rarely, &Machine::draft_us, 2.0 * rarely.draft_us), found_out,
                   &rarely);
  test_short_texts("paid a little, plain: half", with(rarely, &Machine::plain_us, 0.5 * rarely.plain_us), found_out,
                   &rarely);
  // a drafter that is no longer what it was: it may lose its stake in the first text
  test_short_texts("useless, was good", useless, {{0.75, 0.85, 0.91}, {0.92, 0.95, 0.96}}, &pays);
  test_short_texts("pays, was useless", pays, {{0.97, 1.0, 1.03}, {1.05, 1.15, 1.2}}, &useless);
}

void check_same(const std::string &found, const std::string &expected) {
  CHECK(found == expected);
  if (found != expected) {
    std::fprintf(stderr, "  expected %s\n  found    %s\n", expected.c_str(), found.c_str());
  }
}

// Cycles that go as they are told to.
struct Story {
  explicit Story(const df2::DraftProfile &known = df2::DraftProfile()) : length(3, known) {}

  df2::DraftLength length;
  bool is_right = true;    // all drafted tokens are kept, or none
  bool has_room = true;    // the caller's limits allow a draft
  bool does_fail = false;  // nothing comes of a cycle
  uint64_t plain_us = 1000;

  // The phases that the next cycles must go through.
  void expect(const std::string &phases) {
    std::string found;
    for (size_t i = 0; i < phases.size(); ++i) {
      found += cycle();
    }
    check_same(found, phases);
  }

  void run(int n_cycles) {
    for (int i = 0; i < n_cycles; ++i) {
      cycle();
    }
  }

 private:
  char cycle() {
    const float q[] = {0.9f, 0.9f, 0.9f};
    const Phase before = length.phase();
    const int32_t n = length.choose();
    check_transition(before, length.phase());
    const char phase = letter(length.phase());
    CHECK((n > 0) == (std::strchr("TDP", phase) != nullptr));
    const int32_t n_drafted = has_room ? n : 0;
    const int32_t n_verified = n_drafted > 0 ? length.cut(q, n_drafted, 0) : 0;
    CHECK(n_verified > 0 || n_drafted == 0 || phase == 'D');  // what is drafted to learn from is verified in part
    if (!does_fail) {
      const auto per_token_us = static_cast<uint64_t>(100 * n_verified);
      length.observe(q, n_drafted, n_verified, is_right ? n_verified : 0, 0, n_drafted > 0 ? 200 : 0,
                     plain_us + per_token_us);
    }
    return phase;
  }
};

std::string times(int n, char phase) {
  return std::string(static_cast<size_t>(n), phase);
}

// What a text like it teaches: a session that begins with it knows the pair.
df2::DraftProfile profile_of(bool is_right, int n_cycles) {
  Story story;
  story.is_right = is_right;
  story.run(n_cycles);
  return story.length.profile();
}

void story_of_a_drafter_that_pays() {
  Story story;
  story.expect("CCT" + times(30, 'D'));
  // the 32nd cycle since the last plain one is plain again, a failed one is tried again, and then they come rarer
  story.does_fail = true;
  story.expect("FFF");
  story.does_fail = false;
  story.expect("F" + times(63, 'D') + "F" + times(127, 'D') + "FD");
}

void story_of_a_drafter_that_does_not_pay() {
  Story story;
  story.is_right = false;
  // it would pay, by what it says, but has lost its stake; later it does not even look so, and is probed
  story.expect("CCT" + times(9, 'R') + "D" + times(30, 'R') + "D" + times(24, 'R') + "D" + times(22, 'R') + "P");
}

void story_of_a_drafter_that_comes_to_pay() {
  Story story(profile_of(false, 300));
  story.is_right = false;
  story.run(100);
  story.is_right = true;
  story.run(400);
  // and no longer does
  story.is_right = false;
  story.run(400);
}

// The caller's limits: plain cycles before the first draft.
void story_of_no_room_at_first(bool is_right) {
  Story story;
  story.is_right = is_right;
  story.has_room = false;
  story.expect("CCTT");
  story.has_room = true;
  story.expect(is_right ? "TDD" : "TRR");
}

void story_of_a_failure() {
  Story story;
  story.does_fail = true;
  story.expect("CC");
  story.does_fail = false;
  story.expect("CC");
  story.does_fail = true;
  story.expect("TT");
  story.does_fail = false;
  story.expect("TD");
}

// Known pairs need no trials.
void story_of_a_known_pair(bool is_right, int n_before, const std::string &phases) {
  Story story(profile_of(is_right, n_before));
  story.is_right = is_right;
  story.expect(phases);
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
    const int32_t n_verified = n_drafted > 0 ? length.cut(q, n_drafted, 0) : 0;
    const uint32_t verify_us = 4000 + below(400) + per_token_us * static_cast<uint32_t>(n_verified);
    length.observe(q, n_drafted, n_verified, std::min(n_verified, n_right), 0,
                   n_drafted > 0 ? draft_us + below(100) : 0, verify_us);
    found += n_drafted > 0 ? static_cast<char>('0' + n_verified) : '.';
  }
  return found;
}

void test_choices(uint32_t seed, uint32_t draft_us, uint32_t per_token_us, const std::string &expected) {
  check_same(choices(seed, draft_us, per_token_us, static_cast<int>(expected.size())), expected);
}

void test_stories() {
  story_of_a_drafter_that_pays();
  story_of_a_drafter_that_does_not_pay();
  story_of_a_drafter_that_comes_to_pay();
  story_of_no_room_at_first(true);
  story_of_no_room_at_first(false);
  story_of_a_failure();
  story_of_a_known_pair(true, 60, "DDD");
  story_of_a_known_pair(false, 110, "RRR");
}

// In stories and simulations.
void check_seen() {
  for (const std::string &transition : kTransitions) {
    CHECK(seen_transitions.count(transition) == 1);
    if (seen_transitions.count(transition) == 0) {
      std::fprintf(stderr, "  nothing went from %c to %c\n", transition[0], transition[1]);
    }
  }
}

// What a profile is as text, and that nothing else is taken for one.
void test_text() {
  const df2::DraftProfile profile = profile_of(true, 100);
  const std::string text = profile.text();
  const df2::DraftProfile read = df2::DraftProfile::parse(text, 3);
  CHECK(read.max() == 3 && read.text() == text);
  CHECK(read.plain_us == profile.plain_us && read.stake == profile.stake && read.n_drafts > 0.0);
  CHECK(df2::DraftProfile::parse(text, 4).max() == 0);
  for (size_t n = 0; n + 1 < text.size(); ++n) {
    CHECK(df2::DraftProfile::parse(text.substr(0, n), 3).max() == 0);
  }
  for (const char *wrong : {"nan", "-1", "inf", "1e99", "x"}) {
    const size_t begin = text.find('\n', text.find('\n') + 1) + 1;
    const std::string damaged = text.substr(0, begin) + wrong + text.substr(text.find('\n', begin));
    CHECK(df2::DraftProfile::parse(damaged, 3).max() == 0);
  }
  CHECK(df2::DraftProfile::parse("pydflash2-draft-profile 2" + text.substr(text.find('\n')), 3).max() == 0);
}

}  // namespace

int main() {
  test_stories();
  test_promise();
  test_text();
  // choices as they were when this was written: a change of them is a decision, to be made on measurements
  test_choices(
      1, 500, 300,
      "..2224555774414472444441144624112.514611427226271511161761711336661244444444231663243333313123431.555233311133");
  test_choices(
      2, 1300, 800,
      "..223222305222503140061142520163110201100410700214123021713224423025233141344221517300122221333320322132214224");
  test_choices(
      3, 2500, 1500,
      "..1.....................................................................1.....................................");
  test_choices(
      4, 1900, 900,
      "..2...........................1........................................1......................................");
  // verifying costs nearly as much as decoding: drafting cannot pay
  test_recovery();
  test_machine("dear verify", {8000, 4500, 3000, 0.4, 0.5, 2.0}, 600, 0.98, 0.97);
  // cheap verify, well-accepted drafts: long drafts pay
  test_machine("cheap verify", {8000, 500, 1500, 0.85, 0.5, 2.0}, 600, 1.0, 2.2);
  // in between a short draft is best, or one as long as the drafter is sure
  test_machine("middling, knowing", {8000, 2000, 1500, 0.6, 0.8, 2.0}, 600, 1.05, 1.0);
  test_machine("middling, unknowing", {8000, 2000, 1500, 0.6, 0.0, 2.0}, 600, 0.9, 0.97);
  // targets that decode again what was accepted before a rejection
  test_machine("replaying, cheap verify", replaying({8000, 500, 1500, 0.7, 0.5, 2.0}), 600, 0.97, 1.4);
  test_machine("replaying, middling", replaying({8000, 1500, 1500, 0.5, 0.3, 2.0}), 600, 0.97, 0.97);
  test_machine("replaying, dear verify", replaying({8000, 4000, 1500, 0.6, 0.5, 2.0}), 600, 0.97, 0.97);
  test_machine("replaying, useless", replaying({8000, 300, 1000, 0.0, 0.5, 2.0}), 600, 0.97, 0.97);
  // nothing is ever accepted, whatever the drafter says of it
  test_machine("useless", {8000, 300, 1000, 0.0, 0.5, 2.0}, 600, 0.97, 0.97);
  test_machine("useless and sure", {8000, 300, 1000, 0.0, 0.0, 1e9}, 600, 0.97, 0.97);
  // a drafter without a selector has one candidate per position and is always sure (version 1)
  test_machine("always sure", {8000, 500, 1500, 0.7, 0.0, 1e9}, 600, 0.9, 1.5);
  // a processor that changes its speed; times are counted as if it did not
  test_machine("changing speed", {4200, 300, 1350, 0.42, 0.5, 2.0, 70}, 600, 0.97, 0.97);
  test_machine("changing speed, useless", {4200, 300, 1350, 0.0, 0.5, 2.0, 70}, 600, 0.97, 0.97);
  test_machine("changing speed often", {4200, 300, 1350, 0.42, 0.5, 2.0, 15}, 600, 0.97, 0.97);
  // a context that doubles the cost, and drafts that are worth nothing: costs seen long ago must not look cheap
  test_machine("growing context, useless", {4200, 300, 1350, 0.1, 0.0, 2.0, 0, 1.0 / 300}, 300, 0.97, 0.95);
  // nothing to compare with but one cycle that was disturbed
  test_machine("disturbed beginning", {8000, 4500, 3000, 0.4, 0.0, 2.0, 0, 0.0, 4.0}, 300, 0.97, 0.95);
  test_machine("disturbed beginning, useless", {8000, 300, 1000, 0.0, 0.0, 2.0, 0, 0.0, 10.0}, 300, 0.97, 0.96);
  // short answers
  test_machine("short, demo pair", {4200, 300, 1350, 0.42, 0.5, 2.0}, 60, 0.9, 0.95);
  test_machine("short, useless", {4200, 300, 1350, 0.0, 0.5, 2.0}, 60, 0.95, 0.95);
  check_seen();
  return report("draft_length");
}
