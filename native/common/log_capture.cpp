#include "common/log_capture.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>

namespace df2 {

namespace {

constexpr size_t kErrors = 3;

// The program's callback; its user data stays in ggml, so that it is never passed without the other.
std::atomic<ggml_log_callback> programs_callback{nullptr};

std::mutex users_mutex;
int n_users = 0;
LogSet restore = nullptr;  // what the installed callback was set with

thread_local LogCapture *current = nullptr;

}  // namespace

void LogCapture::on_log(ggml_log_level level, const char *text, void *user_data) {
  if (current != nullptr && level == GGML_LOG_LEVEL_ERROR) {
    try {
      current->add(text);
    } catch (const std::bad_alloc &) {
      // then the line is missing
    }
  }
  if (current == nullptr || !current->is_quiet_ || level == GGML_LOG_LEVEL_ERROR) {
    programs_callback.load()(level, text, user_data);
  }
}

bool speaks_of_memory(const std::string &message) {
  constexpr const char *kWords[] = {"Cannot allocate memory", "bad_alloc", "unable to allocate", "failed to allocate"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](const char *words) { return message.find(words) != std::string::npos; });
}

LogCapture::LogCapture(LogSet set, bool is_quiet)
    : outer_(current), is_quiet_(is_quiet || (current != nullptr && current->is_quiet_)) {
  const std::lock_guard<std::mutex> lock(users_mutex);
  ggml_log_callback callback = nullptr;
  void *user_data = nullptr;
  ggml_log_get(&callback, &user_data);
  const bool is_installed = callback == on_log;
  if (!is_installed) {  // also where the program has set another one while somebody captures
    programs_callback = callback;
  }
  restore = n_users == 0 ? nullptr : restore;
  const bool sets_more = restore == nullptr || (restore == ggml_log_set && set != ggml_log_set);
  if (!is_installed || sets_more) {
    set(on_log, user_data);
  }
  restore = sets_more ? set : restore;
  ++n_users;
  current = this;
}

LogCapture::~LogCapture() {
  current = outer_;
  const std::lock_guard<std::mutex> lock(users_mutex);
  if (--n_users > 0) {
    return;
  }
  ggml_log_callback callback = nullptr;
  void *user_data = nullptr;
  ggml_log_get(&callback, &user_data);
  if (callback == on_log) {  // unless the program has set another one meanwhile
    restore(programs_callback, user_data);
  }
}

void LogCapture::add(const char *text) {
  std::string line(text, std::strcspn(text, "\n"));
  const size_t colon = line.find(": ");
  if (colon != std::string::npos && line.find(' ') > colon) {
    line.erase(0, colon + 2);  // the function's name
  }
  if (!line.empty()) {
    errors_.push_back(line);
  }
}

std::string LogCapture::message() const {
  // llama.cpp ends with what is known already
  const size_t n = errors_.size() > 1 && errors_.back() == "failed to load model" ? errors_.size() - 1 : errors_.size();
  std::string joined;
  for (size_t i = n > kErrors ? n - kErrors : 0; i < n; ++i) {
    joined += (joined.empty() ? "" : "; ") + errors_[i];
  }
  return joined;
}

}  // namespace df2
