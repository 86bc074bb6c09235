// Claims with data of their own.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace df2 {

// A T that holds claims, of one owner at a time. llama.cpp's graphs outlive whoever claimed their nodes, and a node's
// claim is looked at once more when its graph is planned again, possibly on another thread. So a T is never freed, only
// used again, and its magic numbers and rules are written once, when it is made.
template <typename T>
class KeptClaims {
 public:
  // Throws std::bad_alloc.
  KeptClaims() : slot_(pool().take()) {}
  ~KeptClaims() { pool().give_back(slot_); }
  KeptClaims(const KeptClaims &) = delete;
  KeptClaims &operator=(const KeptClaims &) = delete;

  T *operator->() const { return &slot_->value; }
  T &operator*() const { return slot_->value; }

 private:
  struct Slot {
    T value;
    bool is_taken = false;
  };

  class Pool {
   public:
    Slot *take() {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = std::find_if(slots_.begin(), slots_.end(), [](const auto &slot) { return !slot->is_taken; });
      Slot *slot = found != slots_.end() ? found->get() : nullptr;
      if (slot == nullptr) {
        slots_.push_back(std::make_unique<Slot>());
        slot = slots_.back().get();
      }
      slot->is_taken = true;
      return slot;
    }
    void give_back(Slot *slot) {
      const std::lock_guard<std::mutex> lock(mutex_);
      slot->is_taken = false;
    }

   private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Slot>> slots_;
  };

  static Pool &pool() {
    static auto *made = new Pool();
    return *made;
  }

  Slot *slot_;
};

}  // namespace df2
