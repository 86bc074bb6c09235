// The one error type inside the library. Everything below the C boundary throws it; native/api turns it into a status
// code and the thread's message. Nothing throws across ggml or llama.cpp callbacks.
#pragma once

#include <stdexcept>
#include <string>

#include "dflash2.h"

namespace df2 {

class Error : public std::runtime_error {
 public:
  Error(df2_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
  df2_status status() const { return status_; }

 private:
  df2_status status_;
};

// printf-style std::string.
__attribute__((format(printf, 1, 2))) std::string format(const char *pattern, ...);

// Where log_line() goes; null drops the lines. To be called before other threads use the library.
void set_log_sink(df2_log_callback callback, void *payload);

// A line for the program's log callback, if it set one.
void log_line(df2_log_level level, const std::string &message);

}  // namespace df2
