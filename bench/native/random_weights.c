#include "random_weights.h"

#include <stddef.h>
#include <string.h>

/* Where one of ggml's blocks keeps its scales: offsets of f16 values, or of an exponent byte. */
typedef struct block_layout {
  int32_t block_bytes;
  int32_t f16_at[2]; /* -1: none */
  int32_t exponent_at;
} block_layout;

static block_layout layout_of(df2_qmm_type type) {
  switch (type) {
    case DF2_QMM_Q4_0:
    case DF2_QMM_IQ4_NL:
      return (block_layout){18, {0, -1}, -1};
    case DF2_QMM_Q4_1:
      return (block_layout){20, {0, 2}, -1};
    case DF2_QMM_Q5_0:
      return (block_layout){22, {0, -1}, -1};
    case DF2_QMM_Q5_1:
      return (block_layout){24, {0, 2}, -1};
    case DF2_QMM_Q8_0:
      return (block_layout){34, {0, -1}, -1};
    case DF2_QMM_Q3_K:
      return (block_layout){110, {108, -1}, -1};
    case DF2_QMM_Q4_K:
      return (block_layout){144, {0, 2}, -1};
    case DF2_QMM_Q5_K:
      return (block_layout){176, {0, 2}, -1};
    case DF2_QMM_Q6_K:
      return (block_layout){210, {208, -1}, -1};
    case DF2_QMM_IQ4_XS:
      return (block_layout){136, {0, -1}, -1};
    case DF2_QMM_MXFP4:
      return (block_layout){17, {-1, -1}, 0};
    case DF2_QMM_F16:
      return (block_layout){2, {0, -1}, -1};
    default:
      return (block_layout){0, {-1, -1}, -1}; /* bf16 and f32 have no blocks */
  }
}

static uint32_t next(uint32_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 17;
  *state ^= *state << 5;
  return *state;
}

/* An f16 of magnitude 2^-7 to 2^-6, of either sign. */
static uint16_t random_f16(uint32_t *state) {
  uint32_t bits = next(state);
  return (uint16_t)((bits & 0x8000u) | 8u << 10 | (bits >> 16 & 0x3ffu));
}

void random_floats(float *values, int64_t n, uint32_t seed) {
  uint32_t state = seed | 1u;
  for (int64_t i = 0; i < n; i++) {
    values[i] = (float)(int32_t)next(&state) * 0x1p-31f;
  }
}

static void random_blocks(uint8_t *bytes, size_t n_bytes, block_layout layout, uint32_t *state) {
  for (size_t i = 0; i < n_bytes; i++) {
    bytes[i] = (uint8_t)(next(state) >> 11);
  }
  for (size_t block = 0; block < n_bytes; block += (size_t)layout.block_bytes) {
    for (int32_t i = 0; i < 2; i++) {
      if (layout.f16_at[i] >= 0) {
        uint16_t scale = random_f16(state);
        memcpy(bytes + block + layout.f16_at[i], &scale, sizeof(scale));
      }
    }
    if (layout.exponent_at >= 0) {
      bytes[block + (size_t)layout.exponent_at] = (uint8_t)(118 + next(state) % 8);
    }
  }
}

void random_weights(void *weights, df2_qmm_type type, int64_t n_out, int64_t n_in, uint32_t seed) {
  uint32_t state = seed | 1u;
  if (type == DF2_QMM_F32) {
    random_floats(weights, n_out * n_in, seed);
  } else if (type == DF2_QMM_BF16) {
    uint16_t *halves = weights;
    for (int64_t i = 0; i < n_out * n_in; i++) {
      float value = (float)(int32_t)next(&state) * 0x1p-31f;
      uint32_t bits;
      memcpy(&bits, &value, sizeof(bits));
      halves[i] = (uint16_t)(bits >> 16);
    }
  } else {
    random_blocks(weights, (size_t)n_out * df2_qmm_row_bytes(type, n_in), layout_of(type), &state);
  }
}
