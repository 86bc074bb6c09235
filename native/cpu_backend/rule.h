// An operation of ggml's CPU back end that this library takes over: which nodes, how much work area, how computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_backend/ggml_cpu_internals.h"

namespace df2 {

class Rule;

// What `extra` of a node points to while the node is a rule's. It is written when the graph is planned, by the thread
// that computes it; all threads read it while they compute. ggml's CPU back end uses `extra` of weights only; the magic
// number tells should that change.
struct Claim {
  static constexpr uint64_t kMagic = 0x6432'7275'6c65'2121;
  uint64_t magic;
  const Rule *rule;  // null: the node is left to ggml
};

// Rules are made once and live as long as the process.
class Rule {
 public:
  virtual ~Rule() = default;

  // Whether this rule computes the node. Asked for every node each time its graph is planned, on the thread that is
  // about to compute it, and never while it is computed: what is true of that thread alone may decide.
  virtual bool matches(const ggml_tensor *op) const = 0;

  // Takes a node that matches; null leaves it to ggml after all. What is returned stays as it is until the graph has
  // been computed, and is never freed: llama.cpp's graphs are planned again, and what is in `extra` is then looked at,
  // possibly by another thread than it was claimed on.
  virtual const Claim *claim(ggml_tensor * /*op*/) const { return &claim_; }

  // Bytes of work area that n_threads share while they compute the node.
  virtual size_t work_bytes(int n_threads, const ggml_tensor *op) const = 0;

  // One thread's part of computing a node that was claimed.
  virtual void compute(const ggml_compute_params &params, ggml_tensor *op) const = 0;

  // Whether compute() only looks at what the node reads, and ggml then computes the node.
  virtual bool only_reads() const { return false; }

  // Whether ggml can compute the node as well. It is left to where its reference implementation is asked for, and in a
  // StockScope.
  virtual bool can_stand_aside() const { return true; }

 private:
  const Claim claim_ = {Claim::kMagic, this};
};

// The rules, by name.
namespace rules {
#define DF2_RULE(name) const Rule &name();
#include "cpu_backend/rules.inc"
#undef DF2_RULE
}  // namespace rules

}  // namespace df2
