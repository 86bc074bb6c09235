// Why llama.cpp fails to load something.
#pragma once

#include <string>

#include "common/load_guard.h"
#include "common/log_capture.h"
#include "llama.h"

namespace df2 {

struct LoadWatch {
  // What ggml said when it wanted to abort, or what was logged as errors.
  std::string reason() const {
    const std::string logged = log.message();
    return !guard.message().empty() ? guard.message() : !logged.empty() ? logged : "it does not say why";
  }

  // Whether that is a lack of memory, in the words of the C library, C++, ggml or llama.cpp.
  bool is_out_of_memory() const {
    const std::string why = reason();
    for (const char *words : {"Cannot allocate memory", "bad_alloc", "unable to allocate", "failed to allocate"}) {
      if (why.find(words) != std::string::npos) {
        return true;
      }
    }
    return false;
  }

  const LoadGuard guard;
  const LogCapture log{llama_log_set};
};

}  // namespace df2
