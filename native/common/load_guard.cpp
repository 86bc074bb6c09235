#include "common/load_guard.h"

#include <cstdio>
#include <stdexcept>

#include "ggml.h"

namespace df2 {

namespace {

std::mutex guard_mutex;
ggml_abort_callback_t previous_callback = nullptr;
thread_local bool guarded = false;
thread_local std::string abort_message;

void on_abort(const char *message) {
  if (guarded) {
    abort_message = message;
    throw std::runtime_error(abort_message);
  }
  if (previous_callback != nullptr) {
    previous_callback(message);
  } else {
    std::fprintf(stderr, "%s\n", message);  // another thread is dying: say why, as ggml itself would
  }
}

}  // namespace

LoadGuard::LoadGuard() : lock_(guard_mutex, std::defer_lock) {
  if (guarded) {
    return;
  }
  lock_.lock();
  abort_message.clear();
  guarded = true;
  previous_callback = ggml_set_abort_callback(on_abort);
}

LoadGuard::~LoadGuard() {
  if (!lock_.owns_lock()) {
    return;
  }
  ggml_set_abort_callback(previous_callback);
  previous_callback = nullptr;
  guarded = false;
}

const std::string &LoadGuard::message() const {
  return abort_message;
}

}  // namespace df2
