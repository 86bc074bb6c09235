/* SME2: outer products of 4 inputs of all rows with those of all outputs, summed in a tile of ZA (rows down, outputs
 * across). With 512-bit vectors a tile has 16 x 16 sums; with shorter ones it is done in parts, longer ones stay partly
 * empty.
 *
 * Outer products sum the codes as integers. Another one, of the rows' da and the outputs' scales, gives what these must
 * be multiplied by, and fmla adds the products to sums that stay in ZA until the end:
 *
 *   tiles 0, 3  integer sums of two blocks, or of the halves of a block: one is computed while the other is read
 *   tile 1      scale * da; adding the product to zero rounds it once, as a multiplication does
 *   tile 2      the sums
 *
 * fmla works on four vectors of ZA a quarter of ZA apart. Those have the sums of rows 4 q .. 4 q + 3; the outer product
 * that adds minima sees them as rows of a tile, and takes its factors in that order (rows_of_lanes). */
#include "ops/qmm/arm_sme2.h"

#include <arm_sme.h>

/* Outer products cost the same for any number of rows, on a unit that several cores share; with fewer rows than these,
 * each core's own i8mm kernel is used. */
#define LEAST_ROWS 4
extern const df2_qmm_kernel df2_qmm_kernels_i8mm[DF2_QMM_N_TYPES];

#define STREAMING __arm_streaming __arm_inout("za") __arm_in("zt0")
#define INLINE static inline __attribute__((always_inline))

enum { SCALED = 1, SUMS = 2 };
#define TILE_MASK(tile) (0x11u << (tile)) /* a tile of 32-bit elements is two of the 64-bit ones that zero names */

/* A product, and the part of it that is being computed: the rows and outputs that vectors have room for. */
typedef struct part {
  float *sums;
  const uint8_t *codes, *scales, *batch;
  int64_t n_blocks, n_rows;
  int64_t row, lane; /* the first row and output */
} part;

/* One bit per byte, so that they serve elements of any size. */
INLINE svbool_t rows_of(const part *p) STREAMING {
  return svwhilelt_b8_s64(4 * p->row, 4 * p->n_rows);
}
INLINE svbool_t outputs_of(const part *p) STREAMING {
  return svwhilelt_b8_s64(4 * p->lane, 4 * DF2_QMM_TILE);
}

/* The row whose sums the SUMS tile has in each of its rows. */
INLINE svuint32_t rows_of_lanes(void) STREAMING {
  const uint32_t quarter = (uint32_t)svcntw() / 4;
  const svbool_t all = svptrue_b32();
  const svuint32_t lanes = svindex_u32(0, 1);
  const svuint32_t in_quarter = svand_n_u32_x(all, lanes, quarter - 1);
  return svadd_u32_x(all, svlsl_n_u32_x(all, in_quarter, 2),
                     svlsr_n_u32_x(all, lanes, (uint32_t)__builtin_ctz(quarter)));
}

INLINE svuint8_t shift(svuint8_t a, int up) STREAMING {
  const svbool_t all = svptrue_b8();
  return up == 0 ? a : up > 0 ? svlsl_n_u8_x(all, a, (uint8_t)up) : svlsr_n_u8_x(all, a, (uint8_t)-up);
}

/* Replaces the bits of the mask. */
INLINE svuint8_t insert(svuint8_t a, svuint8_t bits, uint8_t mask) STREAMING {
  return svbsl_n_u8(bits, a, mask);
}

/* Group g of a block, for types that are not looked up. */
INLINE svint8_t group_of(df2_qmm_codes kind, const uint8_t *codes, int g, svbool_t outputs) STREAMING {
  if (kind == DF2_CODES_8) {
    return svld1_s8(outputs, (const int8_t *)codes + 64 * g);
  }
  const svbool_t all = svptrue_b8();
  svuint8_t w;
  if (kind == DF2_CODES_3) {
    w = svand_n_u8_x(all, shift(svld1_u8(outputs, codes + 64 * (g / 4)), -2 * (g % 4)), 0x03);
    w = insert(w, shift(svld1_u8(outputs, codes + 128), 2 - g), 0x04);
  } else {
    const svuint8_t nibbles = svld1_u8(outputs, codes + 64 * (g % 4));
    w = g < 4 ? svand_n_u8_x(all, nibbles, 0x0f) : shift(nibbles, -4);
    if (kind == DF2_CODES_5) {
      w = insert(w, shift(svld1_u8(outputs, codes + 256), 4 - g), 0x10);
    }
    if (kind == DF2_CODES_6) {
      w = insert(w, shift(svld1_u8(outputs, codes + 256 + 64 * (g / 4)), 4 - 2 * (g % 4)), 0x30);
    }
  }
  return svreinterpret_s8_u8(w);
}

/* Vectors 2 j and 2 j + 1 of a block (arm_sme2.h), for types that are: luti4 makes a vector of each half of the
 * outputs, with two lanes per output. */
INLINE svint32x2_t looked_up(const uint8_t *codes, int j, svbool_t outputs) STREAMING {
  const svint8x2_t halves = svluti4_lane_zt_s8_x2(0, svld1_u8(outputs, codes + 64 * j), 0);
  return svuzp_s32_x2(
      svcreate2_s32(svreinterpret_s32_s8(svget2_s8(halves, 0)), svreinterpret_s32_s8(svget2_s8(halves, 1))));
}

/* Tile numbers must be literals. */
INLINE void add_outer(int tile, svbool_t rows, svbool_t outputs, svint8_t x, svint8_t w) STREAMING {
  if (tile == 0) {
    svmopa_za32_s8_m(0, rows, outputs, x, w);
  } else {
    svmopa_za32_s8_m(3, rows, outputs, x, w);
  }
}

/* Adds step `step` of block b to the integer sums of a tile: a group, or the two vectors of a look-up. */
INLINE void add_step(int tile, const part *p, int64_t b, int step, df2_qmm_codes kind) STREAMING {
  const svbool_t rows = rows_of(p);
  const svbool_t outputs = outputs_of(p);
  const uint8_t *codes = p->codes + b * df2_qmm_code_bytes(kind) + 4 * p->lane;
  const int8_t *x = (const int8_t *)p->batch + b * 48 * p->n_rows + 4 * p->row;
  if (df2_sme2_is_looked_up(kind)) {
    const svint32x2_t w = looked_up(codes, step, outputs);
    x += 8 * step * p->n_rows;
    add_outer(tile, rows, outputs, svld1_s8(rows, x), svreinterpret_s8_s32(svget2_s32(w, 0)));
    add_outer(tile, rows, outputs, svld1_s8(rows, x + 4 * p->n_rows), svreinterpret_s8_s32(svget2_s32(w, 1)));
  } else {
    add_outer(tile, rows, outputs, svld1_s8(rows, x + 4 * step * p->n_rows), group_of(kind, codes, step, outputs));
  }
}

/* Adds -bias times the sums of the rows' codes in the halves of block b that the factors are not zero for. */
INLINE void add_bias(int tile, const part *p, int64_t b, int first_factor, int second_factor) STREAMING {
  const svbool_t rows = rows_of(p);
  const svbool_t outputs = outputs_of(p);
  const uint8_t *half_sums = p->batch + (b * 48 + 40) * p->n_rows + 4 * p->row;
  const svint16_t x = svreinterpret_s16_s32(svld1_s32(rows, (const int32_t *)(const void *)half_sums));
  const svint16_t w =
      svreinterpret_s16_u32(svdup_n_u32(((uint32_t)first_factor & 0xffffu) | (uint32_t)second_factor << 16));
  if (tile == 0) {
    svmopa_za32_s16_m(0, rows, outputs, x, w);
  } else {
    svmopa_za32_s16_m(3, rows, outputs, x, w);
  }
}

/* The integer sums of block b in tile 0 and, if there is a second, of block b + 1 in tile 3. Alternating, since an
 * outer product has to wait for the last one in its tile. */
INLINE void sum_blocks(const part *p, int64_t b, bool has_second, df2_qmm_codes kind, int bias) STREAMING {
  svzero_mask_za(TILE_MASK(0) | TILE_MASK(3));
  for (int step = 0; step < (df2_sme2_is_looked_up(kind) ? 4 : 8); ++step) {
    add_step(0, p, b, step, kind);
    if (has_second) {
      add_step(3, p, b + 1, step, kind);
    }
  }
  if (bias != 0 && !df2_sme2_is_looked_up(kind)) {
    add_bias(0, p, b, -bias, -bias);
    if (has_second) {
      add_bias(3, p, b + 1, -bias, -bias);
    }
  }
}

/* Those of the halves of block b. */
INLINE void sum_halves(const part *p, int64_t b, df2_qmm_codes kind, int bias) STREAMING {
  svzero_mask_za(TILE_MASK(0) | TILE_MASK(3));
  for (int g = 0; g < 4; ++g) {
    add_step(0, p, b, g, kind);
    add_step(3, p, b, g + 4, kind);
  }
  if (bias != 0) {
    add_bias(0, p, b, -bias, 0);
    add_bias(3, p, b, 0, -bias);
  }
}

INLINE svfloat32_t load_f16(svbool_t outputs, const uint8_t *halves, int64_t lane) STREAMING {
  const svuint32_t bits = svld1uh_u32(outputs, (const uint16_t *)(const void *)halves + lane);
  return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(bits));
}
INLINE svfloat32_t load_u8(svbool_t outputs, const uint8_t *bytes, int64_t lane) STREAMING {
  return svcvt_f32_u32_x(svptrue_b32(), svld1ub_u32(outputs, bytes + lane));
}
INLINE svfloat32_t load_s8(svbool_t outputs, const uint8_t *bytes, int64_t lane) STREAMING {
  return svcvt_f32_s32_x(svptrue_b32(), svld1sb_s32(outputs, (const int8_t *)bytes + lane));
}
INLINE svfloat32_t load_exponent(svbool_t outputs, const uint8_t *bytes, int64_t lane) STREAMING {
  const svuint32_t exponents = svld1ub_u32(outputs, bytes + lane);
  return svreinterpret_f32_u32(svlsl_n_u32_x(svptrue_b32(), exponents, 23));
}

INLINE svfloat32_t load_scales(const part *p, int64_t b, int half, df2_qmm_scales kind) STREAMING {
  const svbool_t outputs = outputs_of(p);
  const svbool_t all = svptrue_b32();
  const uint8_t *own = p->scales + df2_qmm_scale_offset(kind, b);
  const uint8_t *super = p->scales + df2_qmm_super_offset(kind, b);
  switch (kind) {
    case DF2_SCALES_E8M0:
      return svmul_n_f32_x(all, load_exponent(outputs, own, p->lane), 0.5f);
    case DF2_SCALES_K_MIN:
      return svmul_f32_x(all, load_f16(outputs, super, p->lane), load_u8(outputs, own, p->lane));
    case DF2_SCALES_K_SIGNED:
    case DF2_SCALES_K_HALVES:
      return svmul_f32_x(all, load_f16(outputs, super, p->lane), load_s8(outputs, own + 16 * half, p->lane));
    default:
      return load_f16(outputs, own, p->lane);
  }
}

INLINE svfloat32_t load_minima(const part *p, int64_t b, df2_qmm_scales kind) STREAMING {
  const svbool_t outputs = outputs_of(p);
  const uint8_t *own = p->scales + df2_qmm_scale_offset(kind, b);
  const uint8_t *super = p->scales + df2_qmm_super_offset(kind, b);
  if (kind == DF2_SCALES_F16_MIN) {
    return load_f16(outputs, own + 32, p->lane);
  }
  return svmul_f32_x(svptrue_b32(), load_f16(outputs, super + 32, p->lane), load_u8(outputs, own + 16, p->lane));
}

/* Rows in the part, in fours. */
INLINE uint32_t n_quads_of(const part *p) STREAMING {
  const int64_t n = p->n_rows - p->row < (int64_t)svcntw() ? p->n_rows - p->row : (int64_t)svcntw();
  return (uint32_t)(n + 3) / 4;
}

/* Adds the integer sums in a tile, times scales, to the sums. */
INLINE void add_scaled(int tile, const part *p, int64_t b, int half, df2_qmm_scales kind) STREAMING {
  const svbool_t rows = rows_of(p);
  const float *da = (const float *)(const void *)(p->batch + (b * 48 + 32) * p->n_rows) + p->row;
  svzero_mask_za(TILE_MASK(SCALED));
  svmopa_za32_f32_m(SCALED, rows, outputs_of(p), svld1_f32(rows, da), load_scales(p, b, half, kind));
  for (uint32_t q = 0; q < n_quads_of(p); ++q) {
    const svint32x4_t codes = tile == 0 ? svread_hor_za32_s32_vg4(0, 4 * q) : svread_hor_za32_s32_vg4(3, 4 * q);
    svmla_za32_f32_vg1x4(SUMS + 4 * q, svread_hor_za32_f32_vg4(SCALED, 4 * q), svcvt_f32_s32_x4(codes));
  }
}

INLINE void add_minima(const part *p, int64_t b, df2_qmm_scales kind, svuint32_t order) STREAMING {
  const float *scaled_sum = (const float *)(const void *)(p->batch + (b * 48 + 36) * p->n_rows) + p->row;
  const svfloat32_t x = svtbl_f32(svld1_f32(rows_of(p), scaled_sum), order);
  svmopa_za32_f32_m(SUMS, svptrue_b8(), outputs_of(p), x, load_minima(p, b, kind));
}

INLINE void store_sums(const part *p) STREAMING {
  const svbool_t outputs = outputs_of(p);
  for (uint32_t q = 0; q < n_quads_of(p); ++q) {
    const svfloat32x4_t quad = svread_za32_f32_vg1x4(SUMS + 4 * q);
    float *out = p->sums + (p->row + 4 * q) * DF2_QMM_TILE + p->lane;
    const int64_t n_left = p->n_rows - p->row - 4 * q;
    svst1_f32(outputs, out, svget4_f32(quad, 0));
    if (n_left > 1) {
      svst1_f32(outputs, out + DF2_QMM_TILE, svget4_f32(quad, 1));
    }
    if (n_left > 2) {
      svst1_f32(outputs, out + 2 * DF2_QMM_TILE, svget4_f32(quad, 2));
    }
    if (n_left > 3) {
      svst1_f32(outputs, out + 3 * DF2_QMM_TILE, svget4_f32(quad, 3));
    }
  }
}

INLINE void add_blocks(const part *p, int64_t b, bool has_second, df2_qmm_codes codes, df2_qmm_scales scales, int bias,
                       svuint32_t order) STREAMING {
  sum_blocks(p, b, has_second, codes, bias);
  add_scaled(0, p, b, 0, scales);
  if (df2_qmm_has_minima(scales)) {
    add_minima(p, b, scales, order);
  }
  if (has_second) {
    add_scaled(3, p, b + 1, 0, scales);
    if (df2_qmm_has_minima(scales)) {
      add_minima(p, b + 1, scales, order);
    }
  }
}

INLINE void multiply_codes(const part *p, df2_qmm_codes codes, df2_qmm_scales scales, int bias) STREAMING {
  const svuint32_t order = rows_of_lanes();
  svzero_mask_za(TILE_MASK(SUMS));
  int64_t b = 0;
  if (scales == DF2_SCALES_K_HALVES) {
    for (; b < p->n_blocks; ++b) {
      sum_halves(p, b, codes, bias);
      add_scaled(0, p, b, 0, scales);
      add_scaled(3, p, b, 1, scales);
    }
  } else {
    for (; b + 1 < p->n_blocks; b += 2) {
      add_blocks(p, b, true, codes, scales, bias, order);
    }
    if (b < p->n_blocks) {
      add_blocks(p, b, false, codes, scales, bias, order);
    }
  }
  store_sums(p);
}

INLINE svfloat32_t load_weights(df2_qmm_codes kind, const uint8_t *weights, const part *p) STREAMING {
  const svbool_t outputs = outputs_of(p);
  if (kind == DF2_CODES_F32) {
    return svld1_f32(outputs, (const float *)(const void *)weights + p->lane);
  }
  if (kind == DF2_CODES_F16) {
    return load_f16(outputs, weights, p->lane);
  }
  const svuint32_t bits = svld1uh_u32(outputs, (const uint16_t *)(const void *)weights + p->lane);
  return svreinterpret_f32_u32(svlsl_n_u32_x(svptrue_b32(), bits, 16));
}

/* Sums of rows in the order of the tile's rows: there is no fmla that sees them otherwise. */
INLINE void multiply_floats(const part *p, df2_qmm_codes kind) STREAMING {
  const svbool_t rows = rows_of(p);
  const svbool_t outputs = outputs_of(p);
  const float *x = (const float *)(const void *)p->batch + p->row;
  const uint8_t *weights = p->codes;
  svzero_mask_za(TILE_MASK(SUMS));
  for (int64_t i = 0; i < p->n_blocks * DF2_QMM_BLOCK; ++i) {
    svmopa_za32_f32_m(SUMS, rows, outputs, svld1_f32(rows, x), load_weights(kind, weights, p));
    x += p->n_rows;
    weights += DF2_QMM_TILE * (kind == DF2_CODES_F32 ? 4 : 2);
  }
  for (uint32_t r = 0; r < svcntw() && p->row + r < p->n_rows; ++r) {
    svst1_hor_za32(SUMS, r, outputs, p->sums + (p->row + r) * DF2_QMM_TILE + p->lane);
  }
}

INLINE void multiply_parts(part *p, df2_qmm_codes codes, df2_qmm_scales scales, int bias) STREAMING {
  for (p->row = 0; p->row < p->n_rows; p->row += (int64_t)svcntw()) {
    for (p->lane = 0; p->lane < DF2_QMM_TILE; p->lane += (int64_t)svcntw()) {
      if (df2_qmm_is_float(codes)) {
        multiply_floats(p, codes);
      } else {
        multiply_codes(p, codes, scales, bias);
      }
    }
  }
}

/* What luti4 turns nibbles into: the lowest bytes of 16 words. */
INLINE void fill_table(int32_t table[16], df2_qmm_codes codes, int bias) {
  for (int i = 0; i < 16; ++i) {
    table[i] = df2_qmm_is_looked_up(codes) ? df2_qmm_table(codes)[i] : i - bias;
  }
}

/* The streaming part is a function of its own, called from one that is not streaming: compilers get the mode changes
 * around a call right, but not all of them those inside a __arm_locally_streaming function. */
#define DF2_QMM_FORMAT(type, name, codes, scales, bias, ...)                                                           \
  static void prepare_##name##_sme2(void *batch, const float *const *rows, int32_t n_rows, int64_t first,              \
                                    int64_t last) {                                                                    \
    if (n_rows < LEAST_ROWS) {                                                                                         \
      df2_qmm_kernels_i8mm[DF2_QMM_##type].prepare(batch, rows, n_rows, first, last);                                  \
    } else {                                                                                                           \
      df2_qmm_prepare_sme2(batch, rows, n_rows, first, last, codes);                                                   \
    }                                                                                                                  \
  }                                                                                                                    \
  static __attribute__((noinline)) void stream_##name##_sme2(part *p) STREAMING {                                      \
    multiply_parts(p, codes, scales, bias);                                                                            \
  }                                                                                                                    \
  __arm_new("za") __arm_new("zt0") static __attribute__((noinline)) void start_##name##_sme2(part *p) {                \
    int32_t table[16];                                                                                                 \
    fill_table(table, codes, bias);                                                                                    \
    svldr_zt(0, table);                                                                                                \
    stream_##name##_sme2(p);                                                                                           \
  }                                                                                                                    \
  static void multiply_##name##_sme2(float *sums, const void *tile, const void *batch, int32_t n_rows, int64_t n_in) { \
    const int64_t n_blocks = n_in / DF2_QMM_BLOCK;                                                                     \
    if (n_rows < LEAST_ROWS) {                                                                                         \
      df2_qmm_kernels_i8mm[DF2_QMM_##type].multiply(sums, tile, batch, n_rows, n_in);                                  \
    } else {                                                                                                           \
      const uint8_t *tile_scales = (const uint8_t *)tile + n_blocks * df2_qmm_code_bytes(codes);                       \
      start_##name##_sme2(&(part){sums, tile, tile_scales, batch, n_blocks, n_rows, 0, 0});                            \
    }                                                                                                                  \
  }
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT

const df2_qmm_kernel df2_qmm_kernels_sme2[DF2_QMM_N_TYPES] = {
#define DF2_QMM_FORMAT(type, name, codes, scales, bias, ...) \
  [DF2_QMM_##type] = {"sme2", DF2_QMM_##type, prepare_##name##_sme2, multiply_##name##_sme2},
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT
};
