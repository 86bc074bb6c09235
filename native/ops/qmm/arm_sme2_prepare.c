#include <string.h>

#include "ops/qmm/arm_quantize.inc"
#include "ops/qmm/arm_sme2.h"

/* Every input of a block for all rows, then the next input. */
static void transpose_floats(float *block, const float *const *rows, int32_t n_rows, int64_t first_input) {
  for (int32_t r = 0; r < n_rows; ++r) {
    for (int i = 0; i < DF2_QMM_BLOCK; ++i) {
      block[i * n_rows + r] = rows[r][first_input + i];
    }
  }
}

static inline __attribute__((always_inline)) void prepare_codes(uint8_t *block, const float *const *rows,
                                                                int32_t n_rows, int64_t first_input,
                                                                df2_qmm_codes kind) {
  float *da = (float *)(void *)(block + 32 * n_rows);
  float *scaled_sum = da + n_rows;
  int16_t *half_sums = (int16_t *)(void *)(scaled_sum + n_rows);
  for (int32_t r = 0; r < n_rows; ++r) {
    int8_t codes[DF2_QMM_BLOCK];
    int32_t sums[2];
    da[r] = quantize_block_neon(codes, sums, rows[r] + first_input);
    scaled_sum[r] = da[r] * (float)(sums[0] + sums[1]);
    half_sums[2 * r] = (int16_t)sums[0];
    half_sums[2 * r + 1] = (int16_t)sums[1];
    for (int vector = 0; vector < 8; ++vector) {
      for (int i = 0; i < 4; ++i) {
        block[4 * (vector * n_rows + r) + i] = (uint8_t)codes[df2_sme2_input(kind, vector, i)];
      }
    }
  }
}

void df2_qmm_prepare_sme2(void *batch, const float *const *rows, int32_t n_rows, int64_t first_block,
                          int64_t last_block, df2_qmm_codes kind) {
  for (int64_t b = first_block; b < last_block; ++b) {
    uint8_t *block = (uint8_t *)batch + b * df2_qmm_batch_block_bytes(kind, n_rows);
    const int64_t first_input = b * DF2_QMM_BLOCK;
    if (df2_qmm_is_float(kind)) {
      transpose_floats((float *)(void *)block, rows, n_rows, first_input);
    } else if (df2_sme2_is_looked_up(kind)) {
      prepare_codes(block, rows, n_rows, first_input, DF2_CODES_4); /* constants, so that the permutation is one */
    } else {
      prepare_codes(block, rows, n_rows, first_input, DF2_CODES_8);
    }
  }
}
