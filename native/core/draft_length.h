// Chooses how many tokens to draft, from what drafting costs and how often drafts are accepted on this machine, with
// this pair, in this text. Drafting nothing is always among the choices, so that a drafter that does not pay here costs
// little more than finding that out.
#pragma once

#include <cstdint>
#include <vector>

namespace df2 {

class DraftLength {
 public:
  // max: the longest draft, >= 1.
  explicit DraftLength(int32_t max);

  // The length for the next cycle: 0 .. max.
  int32_t choose();

  // What a cycle drafted, kept and cost. A cycle cut short by the caller's limits is as good a sample as any.
  void observe(int32_t n_drafted, int32_t n_accepted, uint64_t draft_us, uint64_t verify_us);

  // Expected tokens per microsecond for a length; 0 while its cost is unknown. For choose() and for tests.
  double rate(int32_t n_draft) const;

 private:
  // A running cost in microseconds; 0 until measured.
  struct Cost {
    double value = 0.0;
    int32_t n_seen = 0;
    void add(double sample);
  };

  double verify_cost(int32_t n_draft) const;
  double draft_cost(int32_t n_draft) const;
  double expected_tokens(int32_t n_draft) const;
  int32_t best() const;
  bool may_pay(int32_t n_draft) const;
  int64_t probe_interval(int32_t probe) const;
  bool explore(int32_t current, int32_t *length);

  int32_t max_;
  std::vector<Cost> draft_;       // by length, [0] unused
  std::vector<Cost> verify_;      // by length
  std::vector<double> accepted_;  // decayed counts by position, given that all before it were accepted
  std::vector<double> reached_;
  int64_t cycle_ = 0;
  int64_t last_plain_ = 0;
  int64_t last_probe_ = 0;
  int64_t patience_ = 1;
};

}  // namespace df2
