/* Seeded weights, as ggml stores them, and activations for test_qmm.c. */
#ifndef DF2_TESTS_OPS_QMM_DATA_H
#define DF2_TESTS_OPS_QMM_DATA_H

#include "harness.h"
#include "ops/qmm/qmm.h"

/* Fills [n_out][n_in] weights: codes are any bits, scales what a file could hold. Special ones also have zero,
 * denormal, huge, infinite and NaN scales, and blocks with nothing but extreme codes. */
void qmm_random_weights(test_random *random, uint8_t *weights, df2_qmm_type type, int64_t n_out, int64_t n_in,
                        bool is_special);

/* Fills a row of activations. Special rows, by number: zeros, denormals, huge, NaN, infinities, ties between codes,
 * blocks around the magnitude that counts as zero, negative zeros, extreme codes; the rest are ordinary. */
void qmm_random_row(test_random *random, float *row, int64_t n_in, int32_t r, bool is_special);

/* Whether qmm_random_row puts a NaN or an infinity into special row r; and whether it leaves the row ordinary. */
bool qmm_row_is_invalid(int32_t r);
bool qmm_row_is_ordinary(int32_t r);

#endif
