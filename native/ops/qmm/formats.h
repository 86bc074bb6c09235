/* How each type is packed. For this folder, and for tests and benchmarks that make weights.
 *
 * A tile holds, for each block of 32 inputs, the codes of its 16 outputs; then, block after block again, their scales.
 * Codes come in vectors of 64 bytes: 16 outputs x 4 consecutive inputs (a group), output-major, so that a 32-bit lane
 * is one output. A block has 8 groups, g = 0..7. */
#ifndef DF2_OPS_QMM_FORMATS_H
#define DF2_OPS_QMM_FORMATS_H

#include "ops/qmm/qmm.h"

typedef enum df2_qmm_codes {
  DF2_CODES_4,   /* 4 vectors: vector j has group j in its low nibbles, group j + 4 in its high ones */
  DF2_CODES_IQ4, /* the same, each nibble an index into DF2_QMM_TABLE_IQ4 */
  DF2_CODES_FP4, /* the same, into DF2_QMM_TABLE_FP4 */
  DF2_CODES_5,   /* as CODES_4, then a vector whose bit g is the fifth bit of group g */
  DF2_CODES_6,   /* as CODES_4, then two vectors: bits 2 (g % 4) of vector g / 4 are group g's upper two */
  DF2_CODES_3,   /* two vectors with the lower two bits, laid out as CODES_6's upper; one as CODES_5's */
  DF2_CODES_8,   /* 8 vectors of signed bytes */
  DF2_CODES_F16, /* 32 rows of 16 values: input-major */
  DF2_CODES_BF16,
  DF2_CODES_F32
} df2_qmm_codes;

typedef enum df2_qmm_scales {
  DF2_SCALES_F16,      /* per block: 16 f16 */
  DF2_SCALES_F16_MIN,  /* per block: 16 f16, 16 f16 minima */
  DF2_SCALES_E8M0,     /* per block: 16 exponents e, scale = 2^(e - 128); e = 0 counts as zero */
  DF2_SCALES_K_MIN,    /* per 256: 16 f16 of each kind; per block: 16 u8 scales, 16 u8 minima */
  DF2_SCALES_K_SIGNED, /* per 256: 16 f16; per block: 16 s8 */
  DF2_SCALES_K_HALVES, /* per 256: 16 f16; per block: 16 s8 for its first half, 16 for its second */
  DF2_SCALES_NONE      /* float types */
} df2_qmm_scales;

/* A row of formats.inc. A weight is (code - bias) * scale + minimum. */
typedef struct df2_qmm_format {
  const char *name;
  df2_qmm_codes codes;
  df2_qmm_scales scales;
  int32_t bias;
  int32_t granularity;   /* weights in one of ggml's blocks */
  int32_t granule_bytes; /* of such a block */
  int32_t scale_at;      /* where its f16 scale is, and then its minimum; or its exponent */
} df2_qmm_format;

extern const df2_qmm_format df2_qmm_formats[DF2_QMM_N_TYPES];

/* What a kernel has to know of a format; constants, once it is compiled. */
typedef struct df2_qmm_packing {
  df2_qmm_codes codes;
  df2_qmm_scales scales;
  int32_t bias;
} df2_qmm_packing;

/* A kernel's task: sums = tile * batch (qmm.h). */
typedef struct df2_qmm_product {
  float *sums;
  const uint8_t *tile;
  const uint8_t *batch;
  int32_t n_rows;
  int64_t n_in;
} df2_qmm_product;

/* The 16 values that nibbles stand for: ggml's own, and floats of 4 bits, doubled (hence 2^(e - 128)). */
#define DF2_QMM_TABLE_IQ4 {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define DF2_QMM_TABLE_FP4 {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

/* The layout functions are inline so that kernels fold them to constants. */

static inline bool df2_qmm_is_float(df2_qmm_codes codes) {
  return codes == DF2_CODES_F16 || codes == DF2_CODES_BF16 || codes == DF2_CODES_F32;
}

static inline bool df2_qmm_is_looked_up(df2_qmm_codes codes) {
  return codes == DF2_CODES_IQ4 || codes == DF2_CODES_FP4;
}

/* The table of codes that are looked up; any other's is not read. */
static inline const int8_t *df2_qmm_table(df2_qmm_codes codes) {
  static const int8_t iq4[16] = DF2_QMM_TABLE_IQ4;
  static const int8_t fp4[16] = DF2_QMM_TABLE_FP4;
  return codes == DF2_CODES_FP4 ? fp4 : iq4;
}

/* Whether codes are signed bytes, rather than unsigned ones of at most 6 bits. */
static inline bool df2_qmm_is_signed(df2_qmm_codes codes) {
  return codes == DF2_CODES_8 || df2_qmm_is_looked_up(codes);
}

static inline bool df2_qmm_has_minima(df2_qmm_scales scales) {
  return scales == DF2_SCALES_F16_MIN || scales == DF2_SCALES_K_MIN;
}

/* Bytes of one block's codes. */
static inline int64_t df2_qmm_code_bytes(df2_qmm_codes codes) {
  switch (codes) {
    case DF2_CODES_4:
    case DF2_CODES_IQ4:
    case DF2_CODES_FP4:
      return 4 * 64;
    case DF2_CODES_5:
      return 5 * 64;
    case DF2_CODES_6:
      return 6 * 64;
    case DF2_CODES_3:
      return 3 * 64;
    case DF2_CODES_8:
      return 8 * 64;
    case DF2_CODES_F16:
    case DF2_CODES_BF16:
      return 32 * 32;
    case DF2_CODES_F32:
      return 32 * 64;
  }
  return 0;
}

/* Bytes of one block's scales, and of what precedes every eighth block's. */
static inline int64_t df2_qmm_scale_bytes(df2_qmm_scales scales) {
  switch (scales) {
    case DF2_SCALES_F16:
    case DF2_SCALES_K_MIN:
    case DF2_SCALES_K_HALVES:
      return 32;
    case DF2_SCALES_F16_MIN:
      return 64;
    case DF2_SCALES_E8M0:
    case DF2_SCALES_K_SIGNED:
      return 16;
    case DF2_SCALES_NONE:
      return 0;
  }
  return 0;
}

static inline int64_t df2_qmm_super_bytes(df2_qmm_scales scales) {
  switch (scales) {
    case DF2_SCALES_K_MIN:
      return 64;
    case DF2_SCALES_K_SIGNED:
    case DF2_SCALES_K_HALVES:
      return 32;
    default:
      return 0;
  }
}

/* Where block b's scales begin, from the start of the scales; its super-block's begin at b & ~7. */
static inline int64_t df2_qmm_scale_offset(df2_qmm_scales scales, int64_t b) {
  const int64_t super_bytes = df2_qmm_super_bytes(scales);
  return b * df2_qmm_scale_bytes(scales) + (super_bytes != 0 ? (b / 8 + 1) * super_bytes : 0);
}

static inline int64_t df2_qmm_super_offset(df2_qmm_scales scales, int64_t b) {
  return (b / 8) * (8 * df2_qmm_scale_bytes(scales) + df2_qmm_super_bytes(scales));
}

/* A batch as all kernels but SME2's keep it, block by block:
 *   float types: rows x 32 f32
 *   others:      rows x 32 s8; rows x f32 da; rows x f32 da * sum; rows x 2 s32, -bias * sum of each half
 * Kernels without halves add both of the last two up front: the second is then zero. */
static inline int64_t df2_qmm_batch_block_bytes(df2_qmm_codes codes, int64_t n_rows) {
  return n_rows * (df2_qmm_is_float(codes) ? 128 : 48);
}

#endif
