// What ggml and llama.cpp log as errors on a thread is often the only place where they say what is wrong.
#pragma once

#include <string>
#include <vector>

#include "ggml.h"

namespace df2 {

// ggml_log_set, or llama_log_set, which sets both logs.
using LogSet = void (*)(ggml_log_callback callback, void *user_data);

// Whether what was logged is about a lack of memory, in the words of the C library, C++, ggml or llama.cpp.
bool speaks_of_memory(const std::string &message);

// Keeps the errors that are logged on this thread while it exists; the program's log gets all lines as before, or, if
// it is quiet, nothing else of this thread.
class LogCapture {
 public:
  explicit LogCapture(LogSet set, bool is_quiet = false);
  ~LogCapture();
  LogCapture(const LogCapture &) = delete;
  LogCapture &operator=(const LogCapture &) = delete;

  // The last errors, in one line, without the functions' names; empty if there were none.
  std::string message() const;

 private:
  static void on_log(ggml_log_level level, const char *text, void *user_data);
  void add(const char *text);

  LogCapture *outer_;
  bool is_quiet_;
  std::vector<std::string> errors_;
};

}  // namespace df2
