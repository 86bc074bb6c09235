// The C API for what belongs to no object: version, errors, log.
#include <string>
#include <utility>

#include "api/guard.h"
#include "common/cpu_count.h"

namespace df2 {

namespace {
thread_local std::string last_message;
}

int32_t record_error(df2_status status, const char *message) noexcept {
  try {
    last_message = message;
  } catch (...) {
    last_message.clear();
  }
  return status;
}

}  // namespace df2

extern "C" const char *df2_error_last(void) {
  return df2::last_message.c_str();
}

extern "C" const char *df2_status_name(int32_t status) {
  switch (status) {
    case DF2_OK:
      return "DF2_OK";
    case DF2_EINVAL:
      return "DF2_EINVAL";
    case DF2_ENOMEM:
      return "DF2_ENOMEM";
    case DF2_EIO:
      return "DF2_EIO";
    case DF2_EFORMAT:
      return "DF2_EFORMAT";
    case DF2_EMISMATCH:
      return "DF2_EMISMATCH";
    case DF2_EUNSUPPORTED:
      return "DF2_EUNSUPPORTED";
    case DF2_ECONTEXT:
      return "DF2_ECONTEXT";
    case DF2_EREWIND:
      return "DF2_EREWIND";
    case DF2_EBACKEND:
      return "DF2_EBACKEND";
    case DF2_EPOISONED:
      return "DF2_EPOISONED";
    case DF2_EINTERNAL:
      return "DF2_EINTERNAL";
    default:
      return "unknown";
  }
}

extern "C" const char *df2_version(void) {
  return DF2_VERSION;
}

extern "C" void df2_log_ignore(int /*level*/, const char * /*message*/, void * /*payload*/) {}

extern "C" void df2_log_set(df2_log_callback callback, void *payload) {
  df2::set_log_sink(callback, payload);
}

extern "C" int32_t df2_threads_default(const char **reason) {
  static thread_local std::string last_reason;
  int32_t n_threads = 1;
  df2::guard([&] {
    df2::ThreadCount found = df2::default_threads();
    n_threads = found.n;
    last_reason = std::move(found.reason);
  });
  if (reason != nullptr) {
    *reason = last_reason.c_str();
  }
  return n_threads;
}
