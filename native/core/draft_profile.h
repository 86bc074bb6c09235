// What the draft-length choice has learnt about a pair on a machine: plain numbers, which outlive the session that
// learnt them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace df2 {

// A running mean of costs, in plain cycles.
struct LearntCost {
  double value = 0.0;
  double weight = 0.0;  // samples it stands for, as far as they still count; 0: never measured
};

// Among tokens the drafter was about equally sure of: those that were looked at, and those that were right.
struct LearntChance {
  double n_reached = 0.0;
  double n_right = 0.0;
};

struct DraftProfile {
  explicit DraftProfile(int32_t max = 0);

  // The longest draft it is about; 0: nothing has been learnt.
  int32_t max() const { return static_cast<int32_t>(verify.size()) - 1; }

  double plain_us = 0.0;           // a plain cycle; what follows is relative to it
  LearntCost change;               // verifying another number of tokens than the cycle before did
  std::vector<LearntCost> draft;   // by length, [0] unused
  std::vector<LearntCost> verify;  // by length, [0] unused
  std::array<LearntChance, 8> chances;
  // Of all those tokens: how many were to be right by what is assumed of a drafter that nobody knows, and how many
  // were.
  double n_assumed = 0.0;
  double n_right = 0.0;
  std::vector<double> gains;  // what having the i-th token to verify was worth, on average; [0] unused
  // Averages over the drafts of all texts, the last n_drafts counting most.
  double n_drafts = 0.0;
  double tokens = 0.0;    // that a drafting cycle yields
  double cost = 0.0;      // of a drafting cycle
  double stake = 0.0;     // what drafting may lose in a text, in plain cycles; 0: not known yet
  double n_rested = 0.0;  // cycles since the last draft
  double n_unpaid = 0.0;  // tokens since drafting last seemed to pay

  // As text, for a file. parse() gives an empty profile for anything but what text() wrote for this longest draft.
  std::string text() const;
  static DraftProfile parse(const std::string &text, int32_t max);
};

}  // namespace df2
