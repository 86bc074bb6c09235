/* Armv8.6's int8 matrix multiply: smmla multiplies 8 inputs of 2 rows with those of 2 outputs, twice as much as sdot.
 *
 * Rows come in pairs. A block of a batch has, for each pair, what formats.h lays out for 2 rows, but for the order of
 * the codes: 8 inputs of the first row, 8 of the second, the next 8 of the first ... An odd last row stays alone, and
 * smmla gets it twice. Sums stay in smmla's order, [row pair][output pair][2 rows][2 outputs], until the last block. A
 * batch of a single row takes sdot. */
#define DF2_ISA i8mm
#include "ops/qmm/arm_neon.inc"
#include "ops/qmm/arm_sdot.inc"
#include "ops/qmm/formats.h"

#define DF2_PREPARE prepare_pairs
#define DF2_MULTIPLY_CODES multiply_pairs
static void prepare_pairs(void *batch, const float *const *rows, int32_t n_rows, int64_t first_block,
                          int64_t last_block, df2_qmm_packing how);
static void multiply_pairs(df2_qmm_product of, df2_qmm_packing how);

#include "ops/qmm/tile.inc"

#define N_PAIRS (DF2_LANES / 2) /* of outputs */
#define N_STEPS 4               /* 8 inputs each */

/* 8 inputs of 2 outputs, or of 2 rows. */
typedef int8x16_t pair;

/* A pair of rows in a block; floats and integers as [first, first, second, second]. */
typedef struct row_pair {
  pair x[N_STEPS];
  int32x4_t start[2];
  float32x4_t da, scaled_sum;
} row_pair;

DF2_INLINE void prepare_pairs(void *batch, const float *const *rows, int32_t n_rows, int64_t first_block,
                              int64_t last_block, df2_qmm_packing how) {
  if (df2_qmm_is_float(how.codes) || n_rows == 1) {
    df2_qmm_prepare(batch, rows, n_rows, first_block, last_block, how);
    return;
  }
  for (int64_t b = first_block; b < last_block; ++b) {
    uint8_t *block = (uint8_t *)batch + b * df2_qmm_batch_block_bytes(how.codes, n_rows);
    for (int32_t r = 0; r < n_rows; r += 2, block += 96) {
      const int32_t n = r + 1 < n_rows ? 2 : 1;
      float *floats = (float *)(void *)(block + 32 * n);
      int32_t *start = (int32_t *)(void *)(floats + 2 * n);
      for (int32_t i = 0; i < n; ++i) {
        int8_t codes[DF2_QMM_BLOCK];
        int32_t sums[2];
        floats[i] = quantize_block_neon(codes, sums, rows[r + i] + b * DF2_QMM_BLOCK);
        floats[n + i] = floats[i] * (float)(sums[0] + sums[1]);
        const bool has_halves = how.scales == DF2_SCALES_K_HALVES;
        start[i] = -how.bias * (has_halves ? sums[0] : sums[0] + sums[1]);
        start[n + i] = has_halves ? -how.bias * sums[1] : 0;
        for (int p = 0; p < N_STEPS; ++p) {
          memcpy(block + 8 * (p * n + i), codes + 8 * p, 8);
        }
      }
    }
  }
}

DF2_INLINE row_pair load_pair(const uint8_t *block) {
  row_pair rows;
  for (int p = 0; p < N_STEPS; ++p) {
    rows.x[p] = vreinterpretq_s8_u8(vld1q_u8(block + 16 * p));
  }
  const float32x4_t floats = vld1q_f32((const float *)(const void *)(block + 64));
  const int32x4_t start = vld1q_s32((const int32_t *)(const void *)(block + 80));
  rows.da = vzip1q_f32(floats, floats);
  rows.scaled_sum = vzip2q_f32(floats, floats);
  rows.start[0] = vzip1q_s32(start, start);
  rows.start[1] = vzip2q_s32(start, start);
  return rows;
}

/* A row alone, in both places. */
DF2_INLINE row_pair load_single(const uint8_t *block) {
  row_pair rows;
  for (int p = 0; p < N_STEPS; ++p) {
    rows.x[p] = vreinterpretq_s8_s64(vld1q_dup_s64((const int64_t *)(const void *)(block + 8 * p)));
  }
  rows.da = vld1q_dup_f32((const float *)(const void *)(block + 32));
  rows.scaled_sum = vld1q_dup_f32((const float *)(const void *)(block + 36));
  rows.start[0] = vld1q_dup_s32((const int32_t *)(const void *)(block + 40));
  rows.start[1] = vld1q_dup_s32((const int32_t *)(const void *)(block + 44));
  return rows;
}

/* What a block's outputs have, for the pairs of them: [a, b, a, b]. */
typedef struct factors {
  float scale[2][N_PAIRS][4];
  float minimum[N_PAIRS][4];
} factors;

/* [a, b, c, d] -> [a, b, a, b] and [c, d, c, d]. */
DF2_INLINE void by_output(float out[N_PAIRS][4], vf values) {
  for (int i = 0; i < N_PAIRS / 2; ++i) {
    const float64x2_t v = vreinterpretq_f64_f32(values.part[i]);
    vst1q_f32(out[2 * i], vreinterpretq_f32_f64(vdupq_laneq_f64(v, 0)));
    vst1q_f32(out[2 * i + 1], vreinterpretq_f32_f64(vdupq_laneq_f64(v, 1)));
  }
}

DF2_INLINE void load_factors(factors *out, df2_qmm_scales kind, const uint8_t *scales, int64_t b, int lane) {
  vf scale[2], minimum;
  load_scales(scale, &minimum, kind, scales, b, lane);
  by_output(out->scale[0], scale[0]);
  if (kind == DF2_SCALES_K_HALVES) {
    by_output(out->scale[1], scale[1]);
  }
  if (df2_qmm_has_minima(kind)) {
    by_output(out->minimum, minimum);
  }
}

/* Groups 2 p and 2 p + 1 of outputs 2 k and 2 k + 1 become weights[p][k]. */
DF2_INLINE void pair_outputs(pair weights[N_STEPS][N_PAIRS], const v8 w[8]) {
  for (int p = 0; p < N_STEPS; ++p) {
    for (int i = 0; i < N_PAIRS / 2; ++i) {
      const uint32x4_t even = vreinterpretq_u32_u8(w[2 * p].part[i]);
      const uint32x4_t odd = vreinterpretq_u32_u8(w[2 * p + 1].part[i]);
      weights[p][2 * i] = vreinterpretq_s8_u32(vzip1q_u32(even, odd));
      weights[p][2 * i + 1] = vreinterpretq_s8_u32(vzip2q_u32(even, odd));
    }
  }
}

/* Adds one block to the sums of a pair of rows. */
DF2_INLINE void add_block(float *out, row_pair rows, pair weights[N_STEPS][N_PAIRS], const factors *f, bool has_start,
                          df2_qmm_scales kind) {
  const int n_halves = kind == DF2_SCALES_K_HALVES ? 2 : 1;
  const int n_steps = N_STEPS / n_halves;
  if (n_halves == 2 || df2_qmm_has_minima(kind)) {
    /* more factors than registers: compilers try nevertheless, unless the address looks new for each pair */
    __asm__ volatile("" : "+r"(f));
  }
  float32x4_t sum[N_PAIRS];
  for (int k = 0; k < N_PAIRS; ++k) {
    sum[k] = vld1q_f32(out + 4 * k);
    for (int half = 0; half < n_halves; ++half) {
      int32x4_t dot = has_start ? rows.start[half] : vdupq_n_s32(0);
      for (int p = half * n_steps; p < (half + 1) * n_steps; ++p) {
        dot = vmmlaq_s32(dot, rows.x[p], weights[p][k]);
      }
      sum[k] = vfmaq_f32(sum[k], vmulq_f32(vld1q_f32(f->scale[half][k]), rows.da), vcvtq_f32_s32(dot));
    }
    if (df2_qmm_has_minima(kind)) {
      sum[k] = vfmaq_f32(sum[k], vld1q_f32(f->minimum[k]), rows.scaled_sum);
    }
  }
  for (int k = 0; k < N_PAIRS; ++k) {
    vst1q_f32(out + 4 * k, sum[k]);
  }
}

/* Puts the sums of a pair of rows, or of the single last one, into the caller's order. */
DF2_INLINE void separate_rows(float *out, const float *pairs, bool has_second) {
  for (int i = 0; i < DF2_QMM_TILE / 4; ++i) {
    const float64x2_t left = vreinterpretq_f64_f32(vld1q_f32(pairs + 8 * i));
    const float64x2_t right = vreinterpretq_f64_f32(vld1q_f32(pairs + 8 * i + 4));
    vst1q_f32(out + 4 * i, vreinterpretq_f32_f64(vzip1q_f64(left, right)));
    if (has_second) {
      vst1q_f32(out + DF2_QMM_TILE + 4 * i, vreinterpretq_f32_f64(vzip2q_f64(left, right)));
    }
  }
}

DF2_INLINE void multiply_pairs(df2_qmm_product of, df2_qmm_packing how) {
  if (of.n_rows == 1) {
    multiply_codes(of, how);
    return;
  }
  const int64_t n_blocks = of.n_in / DF2_QMM_BLOCK;
  const int32_t n_rows = of.n_rows;
  const uint8_t *codes = of.tile, *batch = of.batch;
  const uint8_t *scales = codes + n_blocks * df2_qmm_code_bytes(how.codes);
  const v8 table = v8_table(df2_qmm_table(how.codes));
  /* not in the caller's sums: an odd last row has no room there for its pair */
  float pairs[DF2_QMM_BATCH * DF2_QMM_TILE];
  memset(pairs, 0, (size_t)(n_rows + 1) / 2 * 2 * DF2_QMM_TILE * sizeof(float));
  for (int64_t b = 0; b < n_blocks; ++b) {
    prefetch_ahead(of.tile, b, n_blocks, how);
    for (int lane = 0; lane < DF2_QMM_TILE; lane += DF2_LANES) {
      v8 w[8];
      pair weights[N_STEPS][N_PAIRS];
      factors f;
      unpack(w, how.codes, codes + 4 * lane, table);
      pair_outputs(weights, w);
      load_factors(&f, how.scales, scales, b, lane);
      const uint8_t *x = batch;
      float *out = pairs + 2 * lane;
      for (int32_t r = 1; r < n_rows; r += 2, x += 96, out += 2 * DF2_QMM_TILE) {
        add_block(out, load_pair(x), weights, &f, how.bias != 0, how.scales);
      }
      if (n_rows % 2 != 0) {
        add_block(out, load_single(x), weights, &f, how.bias != 0, how.scales);
      }
    }
    codes += df2_qmm_code_bytes(how.codes);
    batch += 48 * n_rows;
  }
  for (int32_t r = 0; r < n_rows; r += 2) {
    separate_rows(of.sums + r * DF2_QMM_TILE, pairs + r * DF2_QMM_TILE, r + 1 < n_rows);
  }
}
