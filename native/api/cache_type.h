// What a df2_cache_type is to ggml.
#pragma once

#include "api/guard.h"
#include "ggml.h"

namespace df2 {

// problem: what to say of a number that is none.
inline ggml_type read_cache_type(int32_t type, const char *problem) {
  switch (type) {
    case DF2_CACHE_F16:
      return GGML_TYPE_F16;
    case DF2_CACHE_F32:
      return GGML_TYPE_F32;
    case DF2_CACHE_BF16:
      return GGML_TYPE_BF16;
    case DF2_CACHE_Q8_0:
      return GGML_TYPE_Q8_0;
    case DF2_CACHE_Q4_0:
      return GGML_TYPE_Q4_0;
    case DF2_CACHE_Q4_1:
      return GGML_TYPE_Q4_1;
    case DF2_CACHE_Q5_0:
      return GGML_TYPE_Q5_0;
    case DF2_CACHE_Q5_1:
      return GGML_TYPE_Q5_1;
    case DF2_CACHE_IQ4_NL:
      return GGML_TYPE_IQ4_NL;
    default:
      throw Error(DF2_EINVAL, problem);
  }
}

}  // namespace df2
