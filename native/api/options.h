// Options of the C boundary as the library has them.
#pragma once

#include "api/cache_type.h"
#include "api/guard.h"
#include "core/session.h"
#include "target/target.h"

namespace df2 {

inline TargetOptions to_target_options(const df2_target_options &given) {
  require(given.swa_full == 0 || given.swa_full == 1, "options.swa_full is neither 0 nor 1");
  return {given.n_ctx,
          given.n_batch,
          given.n_threads,
          wants_kernels(given.kernels),
          read_cache_type(given.cache_type_k, "options.cache_type_k is not a df2_cache_type"),
          read_cache_type(given.cache_type_v, "options.cache_type_v is not a df2_cache_type"),
          given.swa_full == 1};
}

inline SessionOptions to_session_options(const df2_session_options &given) {
  const ggml_type cache_type = read_cache_type(given.cache_type, "options.cache_type is not a df2_cache_type");
  return {given.n_draft,         given.window,          cache_type,
          given.ignore_end != 0, given.n_threads_draft, given.profiles != nullptr ? given.profiles : "",
          given.checkpoint_bytes};
}

}  // namespace df2
