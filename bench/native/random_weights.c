#include "random_weights.h"

#include <string.h>

#include "ops/qmm/formats.h"

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

static void write_random_f16(uint8_t *bytes, uint32_t *state) {
  const uint16_t scale = random_f16(state);
  memcpy(bytes, &scale, sizeof(scale));
}

/* Any bytes, but for the scales. */
static void random_blocks(uint8_t *bytes, size_t n_bytes, const df2_qmm_format *format, uint32_t *state) {
  for (size_t i = 0; i < n_bytes; i++) {
    bytes[i] = (uint8_t)(next(state) >> 11);
  }
  for (uint8_t *block = bytes; block < bytes + n_bytes; block += format->granule_bytes) {
    uint8_t *scale = block + format->scale_at;
    if (format->scales == DF2_SCALES_E8M0) {
      *scale = (uint8_t)(118 + next(state) % 8);
      continue;
    }
    write_random_f16(scale, state);
    if (df2_qmm_has_minima(format->scales)) {
      write_random_f16(scale + 2, state);
    }
  }
}

static void random_bf16(uint16_t *halves, int64_t n, uint32_t *state) {
  for (int64_t i = 0; i < n; i++) {
    float value = (float)(int32_t)next(state) * 0x1p-31f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    halves[i] = (uint16_t)(bits >> 16);
  }
}

void random_weights(void *weights, df2_qmm_type type, int64_t n_out, int64_t n_in, uint32_t seed) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  uint32_t state = seed | 1u;
  switch (format->codes) {
    case DF2_CODES_F32:
      random_floats(weights, n_out * n_in, seed);
      break;
    case DF2_CODES_BF16:
      random_bf16(weights, n_out * n_in, &state);
      break;
    case DF2_CODES_F16:
      for (int64_t i = 0; i < n_out * n_in; i++) {
        write_random_f16((uint8_t *)weights + 2 * i, &state);
      }
      break;
    default:
      random_blocks(weights, (size_t)n_out * df2_qmm_row_bytes(type, n_in), format, &state);
      break;
  }
}
