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

  // Whether ggml wanted to abort, for something else than a lack of memory.
  bool has_aborted() const { return !guard.message().empty() && !is_out_of_memory(); }

  // Whether that is a lack of memory.
  bool is_out_of_memory() const { return speaks_of_memory(reason()); }

  const LoadGuard guard;
  const LogCapture log{llama_log_set};
};

}  // namespace df2
