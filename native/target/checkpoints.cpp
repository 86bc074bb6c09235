#include "target/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "common/error.h"
#include "llama.h"
#include "target/architectures.h"

namespace df2 {

namespace {

constexpr llama_seq_id kSequence = 0;

// Least tokens between copies. A copy moves each byte of a state three times (read, fetched to be written, written) and
// a decode reads each active weight once: with states of 20 to 150 MB and 2 GB of weights, 256 tokens that are drafted
// three to a decode cost more than a hundred times as much.
constexpr int32_t kSpacing = 256;
constexpr int32_t kBoundarySpacing = 32;

// How much more likely a chat comes back to where a message begins or an answer did than to another place.
constexpr double kBoundaryWeight = 8.0;

constexpr uint64_t kDefaultBudget = 512ull << 20;
constexpr uint64_t kMostOfMemory = 8;  // a default takes no more than one part in so many of what is available

}  // namespace

Checkpoints::Checkpoints(llama_context *context, TargetMemory &memory, uint64_t budget)
    : context_(context), memory_(memory), can_copy_(are_possible(context)), budget_(budget) {}

// With a sliding window (deepseek4 has one that llama.cpp does not tell of), llama.cpp copies its keys along and puts
// them back in other places, where attention adds them up in another order.
bool Checkpoints::are_possible(const llama_context *context) {
  const llama_model *model = llama_get_model(context);
  const bool has_window = llama_model_n_swa(model) > 0 || goes_back(architecture_of(model)) == GoesBack::kBySnapshots;
  return is_recurrent(model) && !has_window;
}

uint64_t Checkpoints::default_budget(uint64_t available) {
  return std::min(kDefaultBudget, available / kMostOfMemory);
}

bool Checkpoints::is_due(int32_t n_held, Place place) {
  const int32_t last = held_.empty() ? 0 : held_.back().n_tokens;
  if (place == Place::kBoundary && n_held - last < kBoundarySpacing) {
    if (!held_.empty()) {
      held_.back().place = place;  // it serves as one
    }
    return false;
  }
  const int32_t since = place == Place::kBoundary ? last : std::max(last, last_considered_);
  return n_held - since >= (place == Place::kBoundary ? kBoundarySpacing : kSpacing);
}

void Checkpoints::take(int32_t n_held, Place place) noexcept {
  if (!are_made() || !is_due(n_held, place)) {
    return;
  }
  last_considered_ = n_held;
  try {
    memory_.settle();
    const size_t size = llama_state_seq_get_size_ext(context_, kSequence, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (size == 0 || size > budget_) {
      return;
    }
    Checkpoint added = {n_held, place, size, nullptr};
    held_.reserve(held_.size() + 1);
    if (!make_room(&added)) {
      return;
    }
    if (added.state == nullptr) {
      added.state.reset(new uint8_t[size]);
    }
    if (llama_state_seq_get_data_ext(context_, added.state.get(), size, kSequence,
                                     LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == size) {
      bytes_ += size;
      held_.push_back(std::move(added));
    }
  } catch (const std::bad_alloc &) {
    budget_ = std::max<uint64_t>(bytes_, 1);  // there is no more memory than this
  } catch (const Error &) {
    // a memory that cannot be settled now is not copied now
  }
}

// Drops others for it, or says that it is the least worth having. A copy that is dropped leaves its memory to the new
// one: fresh pages take longer to come by than the copy.
bool Checkpoints::make_room(Checkpoint *added) {
  held_.push_back({added->n_tokens, added->place, added->size, nullptr});
  bytes_ += added->size;
  while (bytes_ > budget_ && least_missed() != held_.size() - 1) {
    const size_t index = least_missed();
    if (held_[index].size == added->size) {
      added->state = std::move(held_[index].state);
    }
    drop(index);
  }
  const bool has_room = bytes_ <= budget_;
  drop(held_.size() - 1);
  return has_room;
}

// The one whose absence would cost least: the tokens that a rewind to somewhere between it and the next would then have
// to decode more, times how likely such a rewind is. Each doubling of the distance from the end counts as equally
// likely, for which the best spacing grows with the square root of the distance.
size_t Checkpoints::least_missed() const {
  size_t least = 0;
  double least_loss = INFINITY;
  const double end = held_.back().n_tokens + 2.0 * kSpacing;
  for (size_t i = 0; i < held_.size(); ++i) {
    const double place = held_[i].n_tokens;
    const double before = i > 0 ? held_[i - 1].n_tokens : 0.0;
    const double next = i + 1 < held_.size() ? held_[i + 1].n_tokens : place + kSpacing;
    const double weight = held_[i].place == Place::kBoundary ? kBoundaryWeight : 1.0;
    const double loss = (place - before) * std::log((end - place) / (end - next)) * weight;
    if (loss < least_loss) {
      least = i;
      least_loss = loss;
    }
  }
  return least;
}

void Checkpoints::drop(size_t index) {
  bytes_ -= held_[index].size;
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Checkpoints::forget(int32_t n_kept) {
  while (!held_.empty() && held_.back().n_tokens > n_kept) {
    drop(held_.size() - 1);
  }
  last_considered_ = std::min(last_considered_, n_kept);
}

int32_t Checkpoints::place_before(int32_t n_kept) const {
  int32_t place = 0;
  for (const Checkpoint &checkpoint : held_) {
    place = checkpoint.n_tokens <= n_kept ? checkpoint.n_tokens : place;
  }
  return place;
}

int32_t Checkpoints::restore(int32_t n_kept) {
  if (budget_ == 0) {
    return TargetMemory::kCannot;
  }
  forget(n_kept);
  llama_memory_t memory = llama_get_memory(context_);
  while (!held_.empty()) {
    const Checkpoint &last = held_.back();
    memory_.settle();
    if (llama_state_seq_set_data_ext(context_, last.state.get(), last.size, kSequence,
                                     LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) == last.size &&
        llama_memory_seq_rm(memory, kSequence, last.n_tokens, -1) &&
        llama_memory_seq_pos_max(memory, kSequence) == last.n_tokens - 1) {
      memory_.replaced(last.n_tokens);
      return last.n_tokens;
    }
    drop(held_.size() - 1);
  }
  return memory_.go_back(0);
}

}  // namespace df2
