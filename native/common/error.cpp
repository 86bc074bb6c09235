#include "common/error.h"

#include <cstdarg>
#include <cstdio>

namespace df2 {

namespace {
df2_log_callback log_callback = nullptr;
void *log_payload = nullptr;
}  // namespace

std::string format(const char *pattern, ...) {
  va_list args;
  va_start(args, pattern);
  va_list again;
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, pattern, args);
  va_end(args);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) {
    std::vsnprintf(&text[0], text.size() + 1, pattern, again);
  }
  va_end(again);
  return text;
}

void set_log_sink(df2_log_callback callback, void *payload) {
  log_callback = callback;
  log_payload = payload;
}

void log_line(df2_log_level level, const std::string &message) {
  if (log_callback != nullptr) {
    log_callback(level, message.c_str(), log_payload);
  }
}

}  // namespace df2
