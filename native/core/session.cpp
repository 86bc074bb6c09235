#include "core/session.h"

#include <algorithm>
#include <new>

#include "common/compute_threads.h"
#include "common/cpu_name.h"
#include "common/error.h"
#include "common/memory_limit.h"
#include "common/stopwatch.h"
#include "core/pair.h"
#include "core/profile_store.h"
#include "ops/common/cpu.h"

namespace df2 {

namespace {

// Context tokens a full-attention drafter attends to unless the program says otherwise: drafters are trained on
// windows of this order, and their acceptance falls beyond it.
constexpr int32_t kDefaultWindow = 2048;

// While nothing is drafted, features are injected in groups of this many.
constexpr int32_t kMaxPending = 64;

// Prompt batch when every row must produce logits, because the last layer is tapped: logits of a whole batch would
// dwarf the model.
constexpr int32_t kAllLogitsBatch = 64;

// The last tokens of a prompt are decoded apart, so that a checkpoint before them serves an answer that is generated
// anew. So many take about as long apart as in a batch. The beginning of a short prompt is as good a place.
constexpr int32_t kPromptEnd = 16;
constexpr int32_t kLongPrompt = 64;

// Undecoded tokens that a verify takes along: more than rejections and marks leave.
constexpr int32_t kMostReplayed = 2 * (DF2_MAX_DRAFT + 1);

}  // namespace

uint64_t checkpoint_budget(int64_t bytes, uint64_t available) {
  if (bytes < -1) {
    throw Error(DF2_EINVAL, format("checkpoint_bytes is %lld; it must be a number of bytes, 0 for no checkpoints, or "
                                   "-1 for the default",
                                   static_cast<long long>(bytes)));
  }
  return bytes < 0 ? Checkpoints::default_budget(available) : static_cast<uint64_t>(bytes);
}

void check_options(const SessionOptions &options, const Target &target, const Drafter *drafter) {
  if (options.window < 0 || options.window > (1 << 20)) {
    throw Error(DF2_EINVAL, format("window must be between 0 and %d", 1 << 20));
  }
  if (options.n_threads_draft < 0 || options.n_threads_draft > target.n_threads()) {
    throw Error(DF2_EINVAL, format("n_threads_draft is %d; it must not exceed the target's number of threads, %d",
                                   options.n_threads_draft, target.n_threads()));
  }
  const int32_t most = drafter != nullptr ? drafter->params().block_size - 1 : 0;
  if (options.n_draft < -1 || options.n_draft > most) {
    throw Error(DF2_EINVAL,
                format("n_draft is %d; %s allows 0 to %d, or -1 (auto: chosen while running)", options.n_draft,
                       drafter != nullptr ? "this drafter" : "a session without a drafter", most));
  }
}

RunnerOptions runner_options(const SessionOptions &options, const Target &target, const Drafter &drafter) {
  RunnerOptions runner;
  runner.full_window = options.window > 0 ? options.window : std::min(kDefaultWindow, drafter.params().n_ctx_train);
  runner.cache_type = options.cache_type;
  runner.n_threads = options.n_threads_draft > 0 ? options.n_threads_draft : target.n_threads();
  runner.threadpool = target.threadpool();
  return runner;
}

PromptBatch prompt_batch(const Target &target, const Drafter *drafter) {
  const std::vector<int32_t> taps = drafter != nullptr ? drafter->params().taps : std::vector<int32_t>();
  if (std::count(taps.begin(), taps.end(), target.n_layer()) == 0) {
    return {target.n_batch(), 1};
  }
  const int32_t n = std::min(kAllLogitsBatch, target.n_batch());
  return {n, n};
}

Session::Session(Target &target, std::shared_ptr<const Drafter> drafter, const SessionOptions &options)
    : target_(target),
      claim_(target.context()),
      argmax_(df2_argmax_find(df2_cpu_allowed_features())),
      checkpoints_(target.context(), target.memory(), checkpoint_budget(options.checkpoint_bytes, available_memory())),
      options_(options) {
  const std::string problem = target.rewind_problem();
  if (!problem.empty()) {
    throw Error(DF2_EUNSUPPORTED, problem);
  }
  check_options(options, target, drafter.get());
  if (drafter != nullptr) {
    check_pair(target, *drafter);
    runner_ = make_runner(drafter);
  }
  target_packed_ = target.packed_weights();
  target_rewind_bytes_ = target.rewind_bytes();
  set_n_draft(options.n_draft);
  target.select_taps(drafter != nullptr ? drafter->params().taps : std::vector<int32_t>());
  target.clear();
}

std::unique_ptr<DrafterRunner> Session::make_runner(const std::shared_ptr<const Drafter> &drafter) const {
  const SharedWeights shared = target_.shared_weights();
  warn_of_unstated_scales(target_, *drafter, shared);
  return std::make_unique<DrafterRunner>(drafter, shared, runner_options(options_, target_, *drafter));
}

Session::~Session() {
  save_profile();
  target_.select_taps({});
  target_.memory().release();
  target_.leave(poisoned_ ? target_.n_held() : n_decoded_);
}

int32_t Session::max_draft() const {
  return runner_ != nullptr ? runner_->drafter().params().block_size - 1 : 0;
}

void Session::set_n_draft(int32_t n_draft) {
  SessionOptions changed = options_;
  changed.n_draft = n_draft;
  check_options(changed, target_, runner_ != nullptr ? &runner_->drafter() : nullptr);
  options_ = changed;
  if (n_draft == -1 && runner_ != nullptr && draft_length_ == nullptr) {
    draft_length_ =
        std::make_unique<DraftLength>(max_draft(), find_profile(options_.profiles, profile_key(), max_draft()));
  }
}

// What costs and acceptance depend on, as far as it can be told without reading gigabytes. A profile that does not fit
// after all is soon corrected.
std::string Session::profile_key() const {
  const Drafter &drafter = runner_->drafter();
  const DrafterParams &params = drafter.params();
  const std::string &path = drafter.path();
  return format("target %s, %llu packed\n", target_.description().c_str(),
                static_cast<unsigned long long>(target_packed_.packed)) +
         format("drafter %s, %zu bytes, %zu packed, %d layers, block %d, vocabulary %d, window %d\n",
                path.substr(path.rfind('/') + 1).c_str(), drafter.weights_bytes(), drafter.packed_bytes(),
                params.n_layer, params.block_size, params.n_vocab_draft, options_.window) +
         format("machine %s, features %x, %d and %d threads", cpu_name().c_str(), df2_cpu_allowed_features(),
                target_.n_threads(), options_.n_threads_draft);
}

void Session::save_profile() noexcept {
  if (!has_learnt_) {
    return;
  }
  has_learnt_ = false;
  try {
    keep_profile(options_.profiles, profile_key(), draft_length_->profile());
  } catch (const std::bad_alloc &) {
    // then it is not kept
  }
}

void Session::check_alive() const {
  if (poisoned_) {
    throw Error(DF2_EPOISONED, "an earlier failure left this session unusable; free it and create another");
  }
}

void Session::check_tokens(const int32_t *tokens, int32_t n_tokens) const {
  for (int32_t i = 0; i < n_tokens; ++i) {
    if (tokens[i] < 0 || tokens[i] >= target_.n_vocab()) {
      throw Error(DF2_EINVAL,
                  format("token %d at index %d is outside the vocabulary of %d", tokens[i], i, target_.n_vocab()));
    }
  }
}

float *Session::pending_room(int32_t n_rows) {
  if (runner_ == nullptr) {
    return nullptr;
  }
  const auto width = static_cast<size_t>(runner_->n_features());
  pending_.resize(static_cast<size_t>(n_pending_ + n_rows) * width);
  return pending_.data() + static_cast<size_t>(n_pending_) * width;
}

// Of the rows in pending_room(), the first n_known are of tokens that were seen before.
void Session::add_pending(int32_t n_known, int32_t n_rows) {
  if (runner_ == nullptr) {
    return;
  }
  const auto width = static_cast<std::ptrdiff_t>(runner_->n_features());
  const auto rows = pending_.begin() + n_pending_ * width;
  if (n_known > 0) {
    pending_.erase(rows, rows + n_known * width);
  }
  n_pending_ += n_rows - n_known;
}

void Session::flush_pending() {
  if (runner_ != nullptr && n_pending_ > 0) {
    runner_->inject(pending_.data(), n_pending_, n_seen_ - n_pending_);
    n_pending_ = 0;
  }
}

// Cuts the target's memory to n_kept tokens, or to the fewer it can go back to, which undoes whatever happened behind
// them. If it cannot, nothing changed.
Session::WentBack Session::try_to_go_back(int32_t n_kept, const char *cause) {
  const bool is_nearer = checkpoints_.place_before(n_kept) > target_.memory().place_before(n_kept);
  int32_t n_held = is_nearer ? TargetMemory::kCannot : target_.memory().go_back(n_kept);
  WentBack how = WentBack::kItself;
  if (n_held < 0) {
    const int32_t n_restored = checkpoints_.restore(n_kept);
    n_held = n_restored != TargetMemory::kCannot ? n_restored : n_held;
    how = WentBack::kByCheckpoint;
  }
  if (n_held == TargetMemory::kCannot) {
    return WentBack::kNot;
  }
  if (n_held == TargetMemory::kLost) {
    poison(cause);
  }
  stats_.n_restored += how == WentBack::kByCheckpoint ? 1 : 0;
  checkpoints_.forget(n_kept);
  n_decoded_ = n_held;
  return how;
}

// cause: of a failure that this undoes; "" otherwise.
void Session::go_back(int32_t n_kept, const char *cause) {
  if (try_to_go_back(n_kept, cause) == WentBack::kNot) {
    poison(cause);
  }
}

void Session::poison(const char *cause) {
  poisoned_ = true;
  const std::string after = *cause != '\0' ? format(" after a failure (%s)", cause) : "";
  throw Error(DF2_EPOISONED, format("the target's memory could not be brought back to what it was%s; free the session",
                                    after.c_str()));
}

void Session::decode_prompt(const int32_t *tokens, int32_t n_tokens) {
  const int32_t n_known = n_seen_ - n_decoded_;
  const int32_t end = n_decoded_ + n_tokens;
  const int32_t n_batch = prompt_batch(target_, runner_ != nullptr ? &runner_->drafter() : nullptr).n_tokens;
  // behind a text that was generated a message begins; behind a prompt it goes on
  const bool is_message = n_decoded_ < this->n_tokens();
  // whole batches are hardly the end: programs hand in long prompts by the batch
  const bool has_end = checkpoints_.are_made() && n_tokens > kLongPrompt && n_tokens % target_.n_batch() != 0;
  const int32_t begin_of_end = has_end ? n_tokens - kPromptEnd : n_tokens;
  for (int32_t done = 0; done < n_tokens;) {
    const int32_t n = std::min(n_batch, (done < begin_of_end ? begin_of_end : n_tokens) - done);
    const bool is_boundary = done == 0 ? is_message : done == begin_of_end;
    checkpoints_.take(n_decoded_, is_boundary ? Checkpoints::Place::kBoundary : Checkpoints::Place::kText);
    // rows that later ones of this very prompt would push out of the cache need not be read
    const bool is_read = runner_ != nullptr && done + n > n_known && n_decoded_ + n > end - runner_->capacity();
    target_.decode(tokens + done, n, n_decoded_, n - 1, is_read ? pending_room(n) : nullptr);
    n_decoded_ += n;
    n_seen_ = std::max(n_seen_, n_decoded_);
    if (is_read) {
      add_pending(std::max(0, n_known - done), n);
      flush_pending();
    }
    done += n;
  }
}

// The sequence is as before if it fails.
void Session::decode_or_undo(const int32_t *tokens, int32_t n_tokens) {
  const int32_t n_before = n_decoded_;
  const int32_t n_seen_before = n_seen_;
  try {
    flush_pending();
    target_.memory().mark(true);
    decode_prompt(tokens, n_tokens);
  } catch (const std::exception &error) {
    n_pending_ = 0;  // should injecting have failed, the drafter lacks these: it only drafts worse
    n_seen_ = n_seen_before;
    if (runner_ != nullptr) {
      runner_->rewind(n_seen_before);
    }
    go_back(n_before, error.what());
    throw;
  }
}

void Session::prefill(const int32_t *tokens, int32_t n_tokens) {
  check_alive();
  check_compute_threads();
  check_tokens(tokens, n_tokens);
  if (n_tokens > target_.n_ctx() - this->n_tokens()) {
    throw Error(DF2_ECONTEXT, format("%d tokens do not fit behind the %d in a context of %d; rewind, or open the "
                                     "target with a larger n_ctx",
                                     n_tokens, this->n_tokens(), target_.n_ctx()));
  }
  target_.check_held(n_decoded_);
  const Stopwatch watch(&stats_.prefill_us);
  const int32_t n_replayed = n_seen_ - n_decoded_;
  const int32_t n_recomputed = std::max(0, this->n_tokens() - 1 - n_seen_);
  // afterwards nothing fails
  tokens_.reserve(tokens_.size() + static_cast<size_t>(n_tokens));
  prefilled_logits_.reserve(static_cast<size_t>(target_.n_vocab()));
  std::vector<int32_t> undecoded(tokens_.begin() + n_decoded_, tokens_.end());
  undecoded.insert(undecoded.end(), tokens, tokens + n_tokens);
  decode_or_undo(undecoded.data(), static_cast<int32_t>(undecoded.size()));
  const float *logits = target_.logits(-1);
  prefilled_logits_.assign(logits, logits + target_.n_vocab());
  // a prompt's features dwarf a block's
  pending_ = std::vector<float>();
  tokens_.insert(tokens_.end(), tokens, tokens + n_tokens);
  if (draft_length_ != nullptr) {
    draft_length_->begin_text();
  }
  stats_.n_prefill += static_cast<uint64_t>(undecoded.size());
  stats_.n_replayed += static_cast<uint64_t>(n_replayed);
  stats_.n_recomputed += static_cast<uint64_t>(n_recomputed);
}

int32_t Session::choose_n_draft(int32_t capacity) const {
  const int32_t n_undecoded = n_tokens() - n_decoded_;
  // without a draft nothing can be rejected, so that they are decoded for good
  if (drafter_failed_ || n_undecoded > max_draft() + 1) {
    return 0;
  }
  const int32_t wanted = is_auto() ? draft_length_->choose() : std::max(0, options_.n_draft);
  // the bonus token needs one place in the output, undecoded tokens theirs in the batch
  const int32_t n_rows = std::min(target_.n_batch(), target_.memory().max_rows());
  const int32_t room = std::min({capacity - 1, target_.n_ctx() - n_tokens(), n_rows - n_undecoded});
  return std::clamp(wanted, 0, std::max(0, room));
}

Draft Session::run_draft(int32_t n_draft, const Sampling &sampling) {
  const Stopwatch watch(&stats_.draft_us);
  const Draft draft = runner_->draft(pending_.data(), n_pending_, tokens_.back(), n_tokens() - 1, n_draft, sampling);
  n_pending_ = 0;
  return draft;
}

// What is not a number is in the target's memory as well by then, and dropping positions does not overwrite it.
void Session::check_logits(const float *logits) {
  if (!target_.has_numbers(logits)) {
    poisoned_ = true;
    throw Error(DF2_EPOISONED,
                "the target's logits are NaN or infinite: its file is damaged, or its numbers are too large for a "
                "half-precision format; try another copy or quantisation of it, and free this session");
  }
}

int32_t Session::pick(const float *logits) {
  check_logits(logits);
  if (sampler_ != nullptr) {
    return target_.sample(sampler_, logits);
  }
  return static_cast<int32_t>(argmax_->argmax(logits, target_.n_vocab()));
}

df2_step_result Session::take_prefilled(int32_t *tokens) {
  const Stopwatch watch(&stats_.accept_us);
  tokens[0] = pick(prefilled_logits_.data());
  tokens_.push_back(tokens[0]);
  prefilled_logits_.clear();
  stats_.n_generated += 1;
  return {1, 0, 0, is_end(tokens[0]) ? 1 : 0};
}

// Walks the verified positions: each picked token is kept, and while it is also the drafted one the next position's
// logits are valid.
df2_step_result Session::accept(const Batch &batch, int32_t *tokens) {
  const Stopwatch watch(&stats_.accept_us);
  df2_step_result result = {0, batch.n_drafted(), 0, 0};
  for (int32_t row = 0; row <= batch.n_drafted(); ++row) {
    const int32_t at = batch.n_replayed + row;
    const int32_t token = pick(target_.logits(at));
    const bool is_drafted = row < batch.n_drafted() && token == batch.tokens[static_cast<size_t>(at) + 1];
    tokens[row] = token;
    result.n_tokens = row + 1;
    result.n_accepted += is_drafted ? 1 : 0;
    result.is_end = is_end(token) ? 1 : 0;
    if (!is_drafted || result.is_end != 0) {
      break;
    }
  }
  return result;
}

df2_step_result Session::step(int32_t *tokens, int32_t capacity) {
  check_alive();
  check_compute_threads();
  if (tokens_.empty()) {
    throw Error(DF2_EINVAL, "there is nothing to continue: prefill at least one token first");
  }
  target_.check_held(n_decoded_);
  if (n_decoded_ == n_tokens()) {
    return take_prefilled(tokens);
  }
  if (n_tokens() > target_.n_ctx()) {
    throw Error(DF2_ECONTEXT, format("the context of %d tokens is full; rewind, or open the target with a larger n_ctx",
                                     target_.n_ctx()));
  }
  const auto timed = [this] { return stats_.prefill_us + stats_.draft_us + stats_.verify_us + stats_.accept_us; };
  const uint64_t timed_before = timed();
  uint64_t cycle_us = 0;
  df2_step_result result;
  {
    const Stopwatch watch(&cycle_us);
    result = cycle(tokens, capacity);
  }
  stats_.other_us += cycle_us - (timed() - timed_before);
  return result;
}

df2_step_result Session::cycle(int32_t *tokens, int32_t capacity) {
  catch_up();
  const Costs before = costs();
  if (n_pending_ >= kMaxPending) {
    const Stopwatch watch(&stats_.draft_us);
    flush_pending();
  }
  const Batch batch = make_batch(capacity);
  tokens_.reserve(tokens_.size() + batch.tokens.size());  // once the memory is cut nothing fails
  target_.memory().mark(batch.n_drafted() > 0);
  df2_step_result result;
  try {
    verify(batch);
    result = accept(batch, tokens);
  } catch (const std::exception &error) {
    // a failed decode may leave some micro-batches behind, a failed sampler leaves them all
    go_back(n_decoded_, error.what());
    throw;
  }
  keep(batch, tokens, result.n_tokens);
  learn(batch, result, before);
  count_cycle(result);
  checkpoints_.take(n_decoded_, Checkpoints::Place::kText);
  return result;
}

// Decodes all but the anchor after a long way back: what the drafter must see again, and what is too much for a verify.
void Session::catch_up() {
  const int32_t n_most = std::min(kMostReplayed, target_.n_batch());
  const int32_t end = n_tokens() - 1;
  if (n_seen_ >= end && end - n_decoded_ < n_most) {
    return;
  }
  const Stopwatch watch(&stats_.prefill_us);
  while (n_decoded_ < end) {
    const int32_t n = std::min(target_.n_batch(), end - n_decoded_);
    const int32_t n_replayed = std::min(n, n_seen_ - n_decoded_);
    decode_or_undo(tokens_.data() + n_decoded_, n);
    stats_.n_replayed += static_cast<uint64_t>(n_replayed);
    stats_.n_recomputed += static_cast<uint64_t>(n - n_replayed);
  }
}

Session::Batch Session::make_batch(int32_t capacity) {
  Batch batch = {{tokens_.begin() + n_decoded_, tokens_.end()}, n_tokens() - n_decoded_ - 1, {}};
  const int32_t n_draft = choose_n_draft(capacity);
  if (n_draft > 0) {
    batch.draft = run_draft(n_draft);
    if (!batch.draft.has_numbers) {
      give_up_drafting();
      return {batch.tokens, batch.n_replayed, {}};
    }
    const int32_t *path = batch.draft.path;
    const int32_t n_worth = is_auto() ? draft_length_->cut(batch.draft.path_q, n_draft, batch.n_replayed) : n_draft;
    batch.tokens.insert(batch.tokens.end(), path, path + n_worth);
  }
  return batch;
}

// What is not a number stays in the drafter's cache, and every later draft would attend to it.
void Session::give_up_drafting() {
  drafter_failed_ = true;
  log_line(DF2_LOG_WARN,
           format("drafter '%s' gives NaN or infinite scores: this session drafts no more. Its file is damaged, or its "
                  "numbers are too large for its cache (cache_type f32)",
                  runner_->drafter().path().c_str()));
}

void Session::verify(const Batch &batch) {
  const Stopwatch watch(&stats_.verify_us);
  const auto n_rows = static_cast<int32_t>(batch.tokens.size());
  target_.decode(batch.tokens.data(), n_rows, n_decoded_, batch.n_replayed, pending_room(n_rows));
}

// Appends the picked tokens to the sequence; the last of them is the next anchor.
void Session::keep(const Batch &batch, const int32_t *tokens, int32_t n_tokens) {
  const int32_t n_rows = batch.n_replayed + n_tokens;
  if (n_tokens <= batch.n_drafted()) {
    go_back(n_decoded_ + n_rows, "");
  } else {
    n_decoded_ += n_rows;
  }
  tokens_.insert(tokens_.end(), tokens, tokens + n_tokens);
  n_seen_ = this->n_tokens() - 1;
  add_pending(batch.n_replayed, n_rows);
  stats_.n_replayed += static_cast<uint64_t>(batch.n_replayed);
}

Session::Costs Session::costs() const {
  return {stats_.draft_us, runner_ != nullptr ? runner_->build_us() : 0, stats_.verify_us};
}

// before: the costs when the cycle began.
void Session::learn(const Batch &batch, const df2_step_result &result, const Costs &before) {
  if (draft_length_ == nullptr) {
    return;
  }
  const Costs now = costs();
  // a graph is built once per shape: a cost, but not what the next draft will cost
  const uint64_t build_us = now.build_us - before.build_us;
  draft_length_->observe(batch.draft.path_q, batch.draft.n_draft, result.n_drafted, result.n_accepted, batch.n_replayed,
                         now.draft_us - before.draft_us - build_us, now.verify_us - before.verify_us);
  has_learnt_ = true;
}

void Session::count_cycle(const df2_step_result &result) {
  stats_.n_cycles += 1;
  stats_.n_generated += static_cast<uint64_t>(result.n_tokens);
  stats_.n_drafted += static_cast<uint64_t>(result.n_drafted);
  stats_.n_accepted += static_cast<uint64_t>(result.n_accepted);
  for (int32_t i = 0; i < result.n_drafted; ++i) {
    stats_.drafted_at[i] += 1;
    stats_.accepted_at[i] += i < result.n_accepted ? 1 : 0;
  }
}

void Session::check_draft(int32_t n_draft) const {
  check_alive();
  check_compute_threads();
  if (runner_ == nullptr) {
    throw Error(DF2_EINVAL, "this session has no drafter");
  }
  if (tokens_.empty() || n_decoded_ == n_tokens()) {
    throw Error(DF2_EINVAL, "there is no token to draft from yet: step once after the prefill");
  }
  if (n_draft < 1 || n_draft > max_draft()) {
    throw Error(DF2_EINVAL, format("n_draft is %d; 1 to %d are possible with this drafter", n_draft, max_draft()));
  }
}

Draft Session::draft(int32_t n_draft, const Sampling &sampling) {
  check_draft(n_draft);
  catch_up();
  return run_draft(n_draft, sampling);
}

void Session::rewind(int32_t n_tokens) {
  check_alive();
  if (n_tokens < 0 || n_tokens > this->n_tokens()) {
    throw Error(DF2_EINVAL, format("cannot rewind to %d tokens: the sequence has %d", n_tokens, this->n_tokens()));
  }
  if (n_tokens == 0 && !target_.holds(n_decoded_)) {
    target_.clear();
    n_decoded_ = 0;
  }
  target_.check_held(n_decoded_);
  if (n_tokens == this->n_tokens()) {
    return;
  }
  // the last kept token becomes the anchor
  const int32_t n_kept = std::max(0, n_tokens - 1);
  const WentBack how = n_decoded_ > n_kept ? try_to_go_back(n_kept, "") : WentBack::kItself;
  if (how == WentBack::kNot) {
    throw Error(DF2_EREWIND, format("the target's memory no longer holds what token %d attends to, or no state to go "
                                    "on from; rewind to 0 and prefill again, or give checkpoint_bytes",
                                    n_tokens));
  }
  checkpoints_.forget(n_kept);
  // the drafter may have forgotten what was long ago, so it gets anew what is decoded again
  const int32_t n_seen = std::min(n_seen_, how == WentBack::kByCheckpoint ? n_decoded_ : n_kept);
  if (runner_ != nullptr) {
    runner_->rewind(n_seen);
    n_pending_ = std::max(0, n_pending_ - (n_seen_ - n_seen));
  }
  n_seen_ = n_seen;
  prefilled_logits_.clear();
  tokens_.resize(static_cast<size_t>(n_tokens));
}

df2_stats Session::read_stats() const {
  df2_stats stats = stats_;
  stats.target_packed_bytes = target_packed_.packed;
  stats.target_copied_bytes = target_packed_.copied;
  stats.target_rewind_bytes = target_rewind_bytes_;
  stats.n_checkpoints = checkpoints_.n_held();
  stats.checkpoint_bytes = checkpoints_.bytes();
  if (runner_ != nullptr) {
    stats.drafter_cache_bytes = runner_->cache_bytes();
    stats.drafter_compute_bytes = runner_->compute_bytes();
    stats.drafter_weights_bytes = runner_->drafter().weights_bytes();
    stats.drafter_packed_bytes = runner_->drafter().packed_bytes();
  }
  return stats;
}

}  // namespace df2
