// Loads a target: a model and a context of this library's own.
#pragma once

#include <memory>
#include <string>

#include "common/log_capture.h"
#include "cpu_backend/packed_bytes.h"
#include "ggml-cpu.h"
#include "llama-cpp.h"
#include "target/tap_source.h"

namespace df2 {

struct TargetOptions;

struct ThreadpoolDeleter {
  void operator()(ggml_threadpool *pool) const { ggml_threadpool_free(pool); }
};

// In the order that they need each other: what comes later is freed first.
struct OwnContext {
  std::unique_ptr<LogCapture> quiet;  // of what is simulated the log hears errors alone
  std::unique_ptr<df2_taps> taps;     // what the context's evaluation callback is given
  std::unique_ptr<ggml_threadpool, ThreadpoolDeleter> threadpool;
  llama_model_ptr model;
  llama_context_ptr context;
  PackedBytes packed;
  bool kernels;           // whether this library's are in use
  bool can_map;           // whether weights that are not packed stay in the file's mapping
  bool simulated;         // whether nothing can be computed
  uint64_t single_bytes;  // simulated: compute buffers for one sequence
};

// Where a model goes: simulated, there are its tensors and its context, but no weights, and no memory behind them. For
// that SimulatedMemory must be active.
enum class Loading { kReal, kSimulated };

// Checks the file, because llama.cpp aborts on some damaged ones, and loads it. A model that uses its weights in a way
// the kernels do not know, or for whose packed weights there is no memory, is loaded without them, with a line for the
// log. Simulated, what a lack of memory leads to does not happen.
// Throws DF2_EINVAL, DF2_EIO, DF2_EFORMAT, DF2_ENOMEM, DF2_EUNSUPPORTED.
OwnContext open_context(const std::string &path, const TargetOptions &options, Loading loading);

}  // namespace df2
