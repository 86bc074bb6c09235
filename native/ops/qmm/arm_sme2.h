/* SME2's own layout of a batch, made in code that is compiled without SME. Private to this folder.
 *
 * Block by block, within the bytes that formats.h gives it:
 *   float types: 32 inputs x rows x f32
 *   others:      8 vectors x rows x 4 s8; rows x f32 da; rows x f32 da * sum; rows x 2 s16, the sums of each half
 * A vector is what one outer product takes: 4 inputs of every row. Which 4, depends on how the codes of its weights
 * come out of their nibbles (df2_sme2_input). */
#ifndef DF2_OPS_QMM_ARM_SME2_H
#define DF2_OPS_QMM_ARM_SME2_H

#include "ops/qmm/formats.h"

/* Whether nibbles are looked up in ZT0, with the bias taken off by the table. */
static inline bool df2_sme2_is_looked_up(df2_qmm_codes kind) {
  return kind == DF2_CODES_4 || df2_qmm_is_looked_up(kind);
}

/* The input (0..31) in byte i of a row's lane in a vector. luti4 puts the low and the high nibble of a byte side by
 * side, that is inputs 16 apart; other vectors are the weights' groups. */
static inline int df2_sme2_input(df2_qmm_codes kind, int vector, int i) {
  return df2_sme2_is_looked_up(kind) ? vector / 2 * 4 + vector % 2 * 2 + i / 2 + i % 2 * 16 : vector * 4 + i;
}

void df2_qmm_prepare_sme2(void *batch, const float *const *rows, int32_t n_rows, int64_t first_block,
                          int64_t last_block, df2_qmm_codes kind);

#endif
