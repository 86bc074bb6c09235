/* How each type is packed. Private to this folder.
 *
 * A tile holds, for each block of 32 inputs, the codes of its 16 outputs; then, block after block again, their scales.
 * Codes come in vectors of 64 bytes: 16 outputs x 4 consecutive inputs (a group), output-major, so that a 32-bit lane
 * is one output. A block has 8 groups, g = 0..7. */
#ifndef DF2_OPS_QMM_FORMATS_H
#define DF2_OPS_QMM_FORMATS_H

#include "ops/qmm/qmm.h"

typedef enum df2_qmm_codes {
  DF2_CODES_4,       /* 4 vectors: vector j has group j in its low nibbles, group j + 4 in its high ones */
  DF2_CODES_4_TABLE, /* the same, each nibble an index into a table of signed values */
  DF2_CODES_5,       /* as CODES_4, then a vector whose bit g is the fifth bit of group g */
  DF2_CODES_6,       /* as CODES_4, then two vectors: bits 2 (g % 4) of vector g / 4 are group g's upper two */
  DF2_CODES_3,       /* two vectors with the lower two bits, laid out as CODES_6's upper; one as CODES_5's */
  DF2_CODES_8,       /* 8 vectors of signed bytes */
  DF2_CODES_F16,     /* 32 rows of 16 values: input-major */
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

/* type, name, codes, scales, bias, weights in one of ggml's blocks, bytes of such a block.
 * A weight is (code - bias) * scale + minimum. Adding a type: a line here, its unpacking from ggml in pack.c, and, if
 * its codes or scales are of a new kind, a branch in tile.inc, ref.c and arm_sme2.c. */
#define DF2_QMM_FORMATS(X)                                               \
  X(Q4_0, q4_0, DF2_CODES_4, DF2_SCALES_F16, 8, 32, 18)                  \
  X(Q4_1, q4_1, DF2_CODES_4, DF2_SCALES_F16_MIN, 0, 32, 20)              \
  X(Q5_0, q5_0, DF2_CODES_5, DF2_SCALES_F16, 16, 32, 22)                 \
  X(Q5_1, q5_1, DF2_CODES_5, DF2_SCALES_F16_MIN, 0, 32, 24)              \
  X(Q8_0, q8_0, DF2_CODES_8, DF2_SCALES_F16, 0, 32, 34)                  \
  X(Q3_K, q3_K, DF2_CODES_3, DF2_SCALES_K_HALVES, 4, 256, 110)           \
  X(Q4_K, q4_K, DF2_CODES_4, DF2_SCALES_K_MIN, 0, 256, 144)              \
  X(Q5_K, q5_K, DF2_CODES_5, DF2_SCALES_K_MIN, 0, 256, 176)              \
  X(Q6_K, q6_K, DF2_CODES_6, DF2_SCALES_K_HALVES, 32, 256, 210)          \
  X(IQ4_NL, iq4_nl, DF2_CODES_4_TABLE, DF2_SCALES_F16, 0, 32, 18)        \
  X(IQ4_XS, iq4_xs, DF2_CODES_4_TABLE, DF2_SCALES_K_SIGNED, 0, 256, 136) \
  X(MXFP4, mxfp4, DF2_CODES_4_TABLE, DF2_SCALES_E8M0, 0, 32, 17)         \
  X(F16, f16, DF2_CODES_F16, DF2_SCALES_NONE, 0, 32, 64)                 \
  X(BF16, bf16, DF2_CODES_BF16, DF2_SCALES_NONE, 0, 32, 64)              \
  X(F32, f32, DF2_CODES_F32, DF2_SCALES_NONE, 0, 32, 128)

typedef struct df2_qmm_format {
  const char *name;
  df2_qmm_codes codes;
  df2_qmm_scales scales;
  int32_t bias;
  int32_t granularity;
  int32_t granule_bytes;
} df2_qmm_format;

extern const df2_qmm_format df2_qmm_formats[DF2_QMM_N_TYPES];

/* The 16 values that the nibbles of iq4_nl and iq4_xs, and of mxfp4 (doubled, hence 2^(e - 128)), stand for. */
#define DF2_QMM_TABLE_IQ4 {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}
#define DF2_QMM_TABLE_MXFP4 {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}
extern const int8_t df2_qmm_table_iq4[16];
extern const int8_t df2_qmm_table_mxfp4[16];

/* The layout functions are inline so that kernels fold them to constants. */

static inline bool df2_qmm_is_float(df2_qmm_codes codes) {
  return codes == DF2_CODES_F16 || codes == DF2_CODES_BF16 || codes == DF2_CODES_F32;
}

/* Whether codes are signed bytes, rather than unsigned ones of at most 6 bits. */
static inline bool df2_qmm_is_signed(df2_qmm_codes codes) {
  return codes == DF2_CODES_8 || codes == DF2_CODES_4_TABLE;
}

static inline bool df2_qmm_has_minima(df2_qmm_scales scales) {
  return scales == DF2_SCALES_F16_MIN || scales == DF2_SCALES_K_MIN;
}

/* Bytes of one block's codes. */
static inline int64_t df2_qmm_code_bytes(df2_qmm_codes codes) {
  switch (codes) {
    case DF2_CODES_4:
    case DF2_CODES_4_TABLE:
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
