/* The definition of the result (qmm.h), one weight at a time. */
#include <math.h>

#include "ops/common/vector_scalar.h"

#define DF2_SIGNED_BIAS 0
#include "ops/qmm/prepare.inc"

/* Input i (0..31) of output o, as an integer. vectors: the block's codes. */
static int32_t code_at(const df2_qmm_format *format, const uint8_t *vectors, int o, int i) {
  const int g = i / 4;
  const int byte = 4 * o + i % 4;
  const int nibble = vectors[64 * (g % 4) + byte] >> 4 * (g / 4) & 0x0f;
  switch (format->codes) {
    case DF2_CODES_IQ4:
    case DF2_CODES_FP4:
      return df2_qmm_table(format->codes)[nibble];
    case DF2_CODES_5:
      return (nibble | (vectors[256 + byte] >> g & 1) << 4) - format->bias;
    case DF2_CODES_6:
      return (nibble | (vectors[256 + 64 * (g / 4) + byte] >> 2 * (g % 4) & 3) << 4) - format->bias;
    case DF2_CODES_3:
      return ((vectors[64 * (g / 4) + byte] >> 2 * (g % 4) & 3) | (vectors[128 + byte] >> g & 1) << 2) - format->bias;
    case DF2_CODES_8:
      return (int8_t)vectors[64 * g + byte];
    default:
      return nibble - format->bias;
  }
}

/* The scales of both halves of output o's block b, and its minimum. */
static void scales_at(float scale[2], float *minimum, df2_qmm_scales kind, const uint8_t *scales, int64_t b, int o) {
  const uint8_t *own = scales + df2_qmm_scale_offset(kind, b);
  const uint8_t *super = scales + df2_qmm_super_offset(kind, b);
  *minimum = 0.0f;
  switch (kind) {
    case DF2_SCALES_F16_MIN:
      *minimum = vf_from_f16(own + 32 + 2 * o);
      scale[0] = vf_from_f16(own + 2 * o);
      break;
    case DF2_SCALES_E8M0:
      scale[0] = vf_from_bits((uint32_t)own[o] << 23) * 0.5f;
      break;
    case DF2_SCALES_K_MIN:
      scale[0] = vf_from_f16(super + 2 * o) * (float)own[o];
      *minimum = vf_from_f16(super + 32 + 2 * o) * (float)own[16 + o];
      break;
    case DF2_SCALES_K_SIGNED:
      scale[0] = vf_from_f16(super + 2 * o) * (float)(int8_t)own[o];
      break;
    case DF2_SCALES_K_HALVES:
      scale[0] = vf_from_f16(super + 2 * o) * (float)(int8_t)own[o];
      scale[1] = vf_from_f16(super + 2 * o) * (float)(int8_t)own[16 + o];
      return;
    default:
      scale[0] = vf_from_f16(own + 2 * o);
      break;
  }
  scale[1] = scale[0];
}

static float quantised_sum(df2_qmm_type type, const uint8_t *tile, const uint8_t *batch, int o, int32_t r,
                           int32_t n_rows, int64_t n_blocks) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t code_bytes = df2_qmm_code_bytes(format->codes);
  const int64_t block_bytes = df2_qmm_batch_block_bytes(format->codes, n_rows);
  float sum = 0.0f;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const uint8_t *block = batch + b * block_bytes;
    const int8_t *x = (const int8_t *)block + r * 32;
    float da, scaled_sum;
    memcpy(&da, block + n_rows * 32 + r * 4, 4);
    memcpy(&scaled_sum, block + n_rows * 36 + r * 4, 4);
    int32_t halves[2] = {0, 0};
    for (int i = 0; i < DF2_QMM_BLOCK; ++i) {
      halves[i / 16] += code_at(format, tile + b * code_bytes, o, i) * x[i];
    }
    float scale[2], minimum;
    scales_at(scale, &minimum, format->scales, tile + n_blocks * code_bytes, b, o);
    if (format->scales == DF2_SCALES_K_HALVES) {
      sum = fmaf(scale[0] * da, (float)halves[0], sum);
      sum = fmaf(scale[1] * da, (float)halves[1], sum);
    } else {
      sum = fmaf(scale[0] * da, (float)(halves[0] + halves[1]), sum);
    }
    if (df2_qmm_has_minima(format->scales)) {
      sum = fmaf(minimum, scaled_sum, sum);
    }
  }
  return sum;
}

static float float_sum(df2_qmm_codes codes, const uint8_t *tile, const uint8_t *batch, int o, int32_t r, int32_t n_rows,
                       int64_t n_in) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n_in; ++i) {
    float weight, x;
    if (codes == DF2_CODES_F32) {
      memcpy(&weight, tile + (i * DF2_QMM_TILE + o) * 4, 4);
    } else {
      const uint8_t *bytes = tile + (i * DF2_QMM_TILE + o) * 2;
      weight = codes == DF2_CODES_F16 ? vf_from_f16(bytes) : vf_from_bf16(bytes);
    }
    memcpy(&x, batch + i / 32 * n_rows * 128 + r * 128 + i % 32 * 4, 4);
    sum = fmaf(weight, x, sum);
  }
  return sum;
}

static void multiply(df2_qmm_type type, float *sums, const uint8_t *tile, const uint8_t *batch, int32_t n_rows,
                     int64_t n_in) {
  const df2_qmm_codes codes = df2_qmm_formats[type].codes;
  for (int32_t r = 0; r < n_rows; ++r) {
    for (int o = 0; o < DF2_QMM_TILE; ++o) {
      sums[r * DF2_QMM_TILE + o] = df2_qmm_is_float(codes)
                                       ? float_sum(codes, tile, batch, o, r, n_rows, n_in)
                                       : quantised_sum(type, tile, batch, o, r, n_rows, n_in / DF2_QMM_BLOCK);
    }
  }
}

#define DF2_QMM_FORMAT(type, name, codes, scales, bias, ...)                                                       \
  static void prepare_##name(void *batch, const float *const *rows, int32_t n_rows, int64_t first, int64_t last) { \
    df2_qmm_prepare(batch, rows, n_rows, first, last, (df2_qmm_packing){codes, scales, bias});                     \
  }                                                                                                                \
  static void multiply_##name(float *sums, const void *tile, const void *batch, int32_t n_rows, int64_t n_in) {    \
    multiply(DF2_QMM_##type, sums, tile, batch, n_rows, n_in);                                                     \
  }
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT

const df2_qmm_kernel df2_qmm_kernels_ref[DF2_QMM_N_TYPES] = {
#define DF2_QMM_FORMAT(type, name, codes, scales, bias, ...) \
  [DF2_QMM_##type] = {"ref", DF2_QMM_##type, prepare_##name, multiply_##name},
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT
};
