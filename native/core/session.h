// One sequence: prefill, draft, verify, accept, rewind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/draft_length.h"
#include "dflash2.h"
#include "drafter/drafter_runner.h"
#include "ops/argmax/argmax.h"
#include "target/checkpoints.h"
#include "target/context_claim.h"
#include "target/target.h"

namespace df2 {

struct SessionOptions {
  int32_t n_draft;  // -1: chosen by DraftLength
  int32_t window;   // 0: default
  ggml_type cache_type;
  bool ignore_end;
  int32_t n_threads_draft;   // 0: the target's
  std::string profiles;      // folder for what DraftLength learns; empty: none
  int64_t checkpoint_bytes;  // most memory for copies of the target's state; -1: default
};

// Throws DF2_EINVAL for options out of range.
void check_options(const SessionOptions &options, const Target &target, const Drafter *drafter);

// Most bytes of checkpoints. bytes: as in the options; available: memory. Throws DF2_EINVAL.
uint64_t checkpoint_budget(int64_t bytes, uint64_t available);

// How a session computes with its drafter.
RunnerOptions runner_options(const SessionOptions &options, const Target &target, const Drafter &drafter);

// Of a prompt.
struct PromptBatch {
  int32_t n_tokens;  // most that are decoded at once
  int32_t n_logits;  // for how many of them there are logits
};
PromptBatch prompt_batch(const Target &target, const Drafter *drafter);

class Session {
 public:
  // drafter may be null: plain decoding. Throws DF2_EMISMATCH, DF2_EUNSUPPORTED, DF2_EINVAL, DF2_ENOMEM,
  // DF2_EBACKEND. The other calls, and the state after their failures: dflash2.h. The target must outlive it.
  Session(Target &target, std::shared_ptr<const Drafter> drafter, const SessionOptions &options);
  ~Session();
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  void set_sampler(llama_sampler *sampler) { sampler_ = sampler; }
  void set_n_draft(int32_t n_draft);
  void prefill(const int32_t *tokens, int32_t n_tokens);
  df2_step_result step(int32_t *tokens, int32_t capacity);
  void rewind(int32_t n_tokens);
  void save_profile() noexcept;
  // Throws DF2_EINVAL if no draft of this length can be made now.
  void check_draft(int32_t n_draft) const;
  Draft draft(int32_t n_draft, const Sampling &sampling);
  // Of the draft that the call before this one made.
  DraftDetails draft_details() { return runner_->details(); }
  int32_t n_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  const DrafterParams *drafter_params() const { return runner_ != nullptr ? &runner_->drafter().params() : nullptr; }

  // struct_size is not set.
  df2_stats read_stats() const;
  void reset_stats() { stats_ = {}; }

 private:
  // What one cycle verifies.
  struct Batch {
    std::vector<int32_t> tokens;  // the undecoded ones, then as much of the draft as is worth it
    int32_t n_replayed;           // undecoded tokens before the anchor
    Draft draft;                  // all zero without one
    int32_t n_drafted() const { return static_cast<int32_t>(tokens.size()) - n_replayed - 1; }
  };

  // Time spent so far, in microseconds.
  struct Costs {
    uint64_t draft_us;
    uint64_t build_us;  // of that, on building graphs
    uint64_t verify_us;
  };

  // How the target's memory went back to fewer tokens, if it could.
  enum class WentBack { kNot, kItself, kByCheckpoint };

  int32_t max_draft() const;
  // Whether the draft length is chosen while running.
  bool is_auto() const { return options_.n_draft == -1 && draft_length_ != nullptr; }
  bool is_end(int32_t token) const { return !options_.ignore_end && target_.is_end(token); }
  std::string profile_key() const;
  void check_alive() const;
  void check_tokens(const int32_t *tokens, int32_t n_tokens) const;
  std::unique_ptr<DrafterRunner> make_runner(const std::shared_ptr<const Drafter> &drafter) const;
  Costs costs() const;

  void decode_prompt(const int32_t *tokens, int32_t n_tokens);
  void decode_or_undo(const int32_t *tokens, int32_t n_tokens);
  WentBack try_to_go_back(int32_t n_kept, const char *cause);
  void go_back(int32_t n_kept, const char *cause);
  [[noreturn]] void poison(const char *cause);
  float *pending_room(int32_t n_rows);
  void add_pending(int32_t n_known, int32_t n_rows);
  void flush_pending();

  df2_step_result take_prefilled(int32_t *tokens);
  df2_step_result cycle(int32_t *tokens, int32_t capacity);
  void catch_up();
  Batch make_batch(int32_t capacity);
  void give_up_drafting();
  int32_t choose_n_draft(int32_t capacity) const;
  Draft run_draft(int32_t n_draft, const Sampling &sampling = {});
  void verify(const Batch &batch);
  df2_step_result accept(const Batch &batch, int32_t *tokens);
  void check_logits(const float *logits);
  int32_t pick(const float *logits);
  void keep(const Batch &batch, const int32_t *tokens, int32_t n_tokens);
  void learn(const Batch &batch, const df2_step_result &result, const Costs &before);
  void count_cycle(const df2_step_result &result);

  Target &target_;
  ContextClaim claim_;
  const df2_argmax_kernel *argmax_;
  PackedBytes target_packed_;
  uint64_t target_rewind_bytes_ = 0;
  Checkpoints checkpoints_;
  std::unique_ptr<DrafterRunner> runner_;
  std::unique_ptr<DraftLength> draft_length_;  // null until the length is first to be chosen
  bool has_learnt_ = false;                    // what no profile has yet
  SessionOptions options_;
  llama_sampler *sampler_ = nullptr;

  std::vector<int32_t> tokens_;
  // Tokens in the target's memory: all of them right after a prefill; else all but the last (the anchor), or fewer if
  // the memory could not drop rejected tokens alone: the rest is decoded again with the next block.
  int32_t n_decoded_ = 0;
  // Tokens whose hidden states the drafter was given: those decoded, whether or not the memory still holds them, but
  // where a checkpoint is behind them.
  int32_t n_seen_ = 0;

  // Right after a prefill, the logits to pick from: the target's own are gone if the next prefill fails, or if the
  // program decodes another sequence.
  std::vector<float> prefilled_logits_;

  // Features of the newest tokens seen that the drafter's cache does not have yet.
  std::vector<float> pending_;
  int32_t n_pending_ = 0;

  bool poisoned_ = false;
  bool drafter_failed_ = false;
  df2_stats stats_ = {};
};

}  // namespace df2
