// What a target, with a drafter or without one, takes of a machine's memory: known before any of it is allocated.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/session.h"
#include "target/target.h"

namespace df2 {

struct PlanRequest {
  std::string target;  // path
  TargetOptions options;
  uint64_t max_bytes;        // 0: what the machine has
  std::string drafter = "";  // path; empty: none
  bool drafter_kernels = true;
  int32_t drafter_version = 0;
  SessionOptions session = {-1, 0, GGML_TYPE_F16, false, 0, "", -1};
};

struct DrafterBytes {
  uint64_t mapped = 0;  // as TargetBytes
  uint64_t packed = 0;
  uint64_t packed_from = 0;  // what is packed takes that much in the file
  uint64_t cache = 0;
  uint64_t compute = 0;
  uint64_t features = 0;  // hidden states of the target that wait to be read

  // What stays in memory.
  uint64_t total() const { return packed + cache + compute + features; }
};

// Without the vocabulary, the graphs and the program itself: tens of MB.
struct MemoryPlan {
  int32_t n_ctx = 0;     // as llama.cpp rounds it; less than asked for if that does not fit either
  bool kernels = false;  // false: off, or there is no room for packed weights
  TargetBytes target;
  uint64_t logits = 0;
  DrafterBytes drafter;
  bool has_checkpoints = false;
  uint64_t checkpoints = 0;  // most that a session's take besides
  uint64_t available = 0;
  std::string note;     // what opening does otherwise than asked, or what makes it slow; "" if there is nothing
  std::string problem;  // why it cannot be opened, and what would help; "" if it can

  uint64_t total() const { return target.total() + logits + drafter.total(); }
  uint64_t mapped() const { return target.mapped + drafter.mapped; }
};

// Throws what opening the target, loading the drafter and creating the session would, but for a lack of the memory that
// is planned: that is the plan's problem.
MemoryPlan plan_memory(const PlanRequest &request);

// Opens a target if the plan for it has no problem; DF2_ENOMEM otherwise. max_bytes: as in a request; UINT64_MAX opens
// it without a plan.
std::unique_ptr<Target> open_within(const std::string &path, TargetOptions options, uint64_t max_bytes);

}  // namespace df2
