// Loads a target: a model and a context of this library's own.
#pragma once

#include <memory>
#include <string>

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
  std::unique_ptr<df2_taps> taps;  // what the context's evaluation callback is given
  std::unique_ptr<ggml_threadpool, ThreadpoolDeleter> threadpool;
  llama_model_ptr model;
  llama_context_ptr context;
  PackedBytes packed;
  bool kernels;  // whether this library's are in use
};

// Checks the file, because llama.cpp aborts on some damaged ones, and loads it. A model that uses its weights in a way
// the kernels do not know, or for whose packed weights there is no memory, is loaded without them, with a line for the
// log.
// Throws DF2_EINVAL, DF2_EIO, DF2_EFORMAT, DF2_ENOMEM, DF2_EUNSUPPORTED.
OwnContext open_context(const std::string &path, const TargetOptions &options);

}  // namespace df2
