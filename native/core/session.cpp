#include "core/session.h"

#include <algorithm>
#include <new>

#include "common/compute_threads.h"
#include "common/cpu_name.h"
#include "common/error.h"
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

}  // namespace

Session::Session(Target &target, std::shared_ptr<const Drafter> drafter, const SessionOptions &options)
    : target_(target),
      claim_(target.context()),
      argmax_(df2_argmax_find(df2_cpu_allowed_features())),
      options_(options) {
  const std::string problem = target.rewind_problem();
  if (!problem.empty()) {
    throw Error(DF2_EUNSUPPORTED, problem);
  }
  check_options();
  if (drafter != nullptr) {
    check_pair(target, *drafter);
    runner_ = make_runner(drafter);
  }
  target_packed_ = target.packed_weights();
  set_n_draft(options.n_draft);
  target.select_taps(drafter != nullptr ? drafter->params().taps : std::vector<int32_t>());
  target.clear();
}

void Session::check_options() const {
  if (options_.window < 0 || options_.window > (1 << 20)) {
    throw Error(DF2_EINVAL, format("window must be between 0 and %d", 1 << 20));
  }
  if (options_.n_threads_draft < 0 || options_.n_threads_draft > target_.n_threads()) {
    throw Error(DF2_EINVAL, format("n_threads_draft is %d; it must not exceed the target's number of threads, %d",
                                   options_.n_threads_draft, target_.n_threads()));
  }
}

std::unique_ptr<DrafterRunner> Session::make_runner(const std::shared_ptr<const Drafter> &drafter) const {
  RunnerOptions runner;
  runner.full_window = options_.window > 0 ? options_.window : std::min(kDefaultWindow, drafter->params().n_ctx_train);
  runner.cache_type = options_.cache_type;
  runner.n_threads = options_.n_threads_draft > 0 ? options_.n_threads_draft : target_.n_threads();
  runner.threadpool = target_.threadpool();
  const SharedWeights shared = target_.shared_weights();
  warn_of_unstated_scales(target_, *drafter, shared);
  return std::make_unique<DrafterRunner>(drafter, shared, runner);
}

Session::~Session() {
  save_profile();
  target_.select_taps({});
  target_.memory().release();
}

int32_t Session::max_draft() const {
  return runner_ != nullptr ? runner_->drafter().params().block_size - 1 : 0;
}

void Session::set_n_draft(int32_t n_draft) {
  if (n_draft < -1 || n_draft > max_draft()) {
    throw Error(DF2_EINVAL, format("n_draft is %d; %s allows 0 to %d, or -1 (auto: chosen while running)", n_draft,
                                   runner_ != nullptr ? "this drafter" : "a session without a drafter", max_draft()));
  }
  options_.n_draft = n_draft;
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
    runner_->inject(pending_.data(), n_pending_, n_seen() - n_pending_);
    n_pending_ = 0;
  }
}

// Cuts the target's memory to n_kept tokens, or to the fewer it can go back to, which undoes whatever happened behind
// them. False if it cannot; nothing changed then.
bool Session::can_go_back(int32_t n_kept, const char *cause) {
  const int32_t n_held = target_.memory().go_back(n_kept);
  if (n_held == TargetMemory::kCannot) {
    return false;
  }
  if (n_held == TargetMemory::kLost) {
    poison(cause);
  }
  n_decoded_ = n_held;
  return true;
}

// cause: of a failure that this undoes; "" otherwise.
void Session::go_back(int32_t n_kept, const char *cause) {
  if (!can_go_back(n_kept, cause)) {
    poison(cause);
  }
}

void Session::poison(const char *cause) {
  poisoned_ = true;
  const std::string after = *cause != '\0' ? format(" after a failure (%s)", cause) : "";
  throw Error(DF2_EPOISONED, format("the target's memory could not be brought back to what it was%s; free the session",
                                    after.c_str()));
}

// What the last prefill left to pick from, should the next one fail.
void Session::hold_logits() {
  if (n_decoded_ > 0 && n_decoded_ == n_tokens() && held_logits_.empty()) {
    const float *logits = target_.logits(-1);
    held_logits_.assign(logits, logits + target_.n_vocab());
  }
}

void Session::decode_prompt(const std::vector<int32_t> &tokens) {
  const int32_t n_known = n_seen() - n_decoded_;
  const auto n_total = static_cast<int32_t>(tokens.size());
  const int32_t end = n_decoded_ + n_total;
  bool all_logits = false;
  if (runner_ != nullptr) {
    const std::vector<int32_t> &taps = runner_->drafter().params().taps;
    all_logits = std::count(taps.begin(), taps.end(), target_.n_layer()) != 0;
  }
  const int32_t n_batch = all_logits ? std::min(kAllLogitsBatch, target_.n_batch()) : target_.n_batch();
  for (int32_t done = 0; done < n_total;) {
    const int32_t n = std::min(n_batch, n_total - done);
    // rows that later ones of this very prompt would push out of the cache need not be read
    const bool is_read = runner_ != nullptr && done + n > n_known && n_decoded_ + n > end - runner_->capacity();
    target_.decode(tokens.data() + done, n, n_decoded_, n - 1, is_read ? pending_room(n) : nullptr);
    n_decoded_ += n;
    if (is_read) {
      add_pending(std::max(0, n_known - done), n);
      flush_pending();
    }
    done += n;
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
  const Stopwatch watch(&stats_.prefill_us);
  const int32_t n_before = n_decoded_;
  const int32_t n_seen_before = n_seen();
  hold_logits();
  tokens_.reserve(tokens_.size() + static_cast<size_t>(n_tokens));  // afterwards nothing fails
  std::vector<int32_t> undecoded(tokens_.begin() + n_decoded_, tokens_.end());
  undecoded.insert(undecoded.end(), tokens, tokens + n_tokens);
  try {
    flush_pending();
    target_.memory().mark(true);
    decode_prompt(undecoded);
  } catch (const std::exception &error) {
    n_pending_ = 0;  // should injecting have failed, the drafter lacks these: it only drafts worse
    if (runner_ != nullptr) {
      runner_->rewind(n_seen_before);
    }
    go_back(n_before, error.what());
    throw;
  }
  held_logits_.clear();
  // a prompt's features dwarf a block's
  pending_ = std::vector<float>();
  tokens_.insert(tokens_.end(), tokens, tokens + n_tokens);
  if (draft_length_ != nullptr) {
    draft_length_->begin_text();
  }
  stats_.n_prefill += static_cast<uint64_t>(undecoded.size());
  stats_.n_replayed += static_cast<uint64_t>(n_seen_before - n_before);
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
  tokens[0] = pick(held_logits_.empty() ? target_.logits(-1) : held_logits_.data());
  tokens_.push_back(tokens[0]);
  held_logits_.clear();
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
  if (n_decoded_ == n_tokens()) {
    return take_prefilled(tokens);
  }
  if (n_tokens() > target_.n_ctx()) {
    throw Error(DF2_ECONTEXT, format("the context of %d tokens is full; rewind, or open the target with a larger n_ctx",
                                     target_.n_ctx()));
  }
  const auto timed = [this] { return stats_.draft_us + stats_.verify_us + stats_.accept_us; };
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
  return result;
}

// Decodes undecoded tokens that one batch does not hold: after a long way back.
void Session::catch_up() {
  const Stopwatch watch(&stats_.verify_us);
  while (n_tokens() - n_decoded_ > target_.n_batch()) {
    const int32_t n = std::min(target_.n_batch(), n_tokens() - 1 - n_decoded_);
    target_.memory().mark(false);
    try {
      target_.decode(tokens_.data() + n_decoded_, n, n_decoded_, n - 1, nullptr);
    } catch (const std::exception &error) {
      go_back(n_decoded_, error.what());
      throw;
    }
    n_decoded_ += n;
    stats_.n_replayed += static_cast<uint64_t>(n);
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
  return run_draft(n_draft, sampling);
}

void Session::rewind(int32_t n_tokens) {
  check_alive();
  if (n_tokens < 0 || n_tokens > this->n_tokens()) {
    throw Error(DF2_EINVAL, format("cannot rewind to %d tokens: the sequence has %d", n_tokens, this->n_tokens()));
  }
  if (n_tokens == this->n_tokens()) {
    return;
  }
  // the last kept token becomes the anchor
  const int32_t n_kept = std::max(0, n_tokens - 1);
  const int32_t n_dropped = n_seen() - n_kept;
  if (n_decoded_ > n_kept && !can_go_back(n_kept, "")) {
    throw Error(DF2_EREWIND, format("the target's memory no longer holds what token %d attends to, or no state to go "
                                    "on from; rewind to 0 and prefill again",
                                    n_tokens));
  }
  if (runner_ != nullptr) {
    runner_->rewind(n_kept);
    n_pending_ = std::max(0, n_pending_ - n_dropped);
  }
  held_logits_.clear();
  tokens_.resize(static_cast<size_t>(n_tokens));
}

df2_stats Session::read_stats() const {
  df2_stats stats = stats_;
  stats.target_packed_bytes = target_packed_.packed;
  stats.target_copied_bytes = target_packed_.copied;
  if (runner_ != nullptr) {
    stats.drafter_cache_bytes = runner_->cache_bytes();
    stats.drafter_compute_bytes = runner_->compute_bytes();
    stats.drafter_weights_bytes = runner_->drafter().weights_bytes();
    stats.drafter_packed_bytes = runner_->drafter().packed_bytes();
  }
  return stats;
}

}  // namespace df2
