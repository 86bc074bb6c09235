/* Weights that mean nothing, as ggml stores them. */
#ifndef BENCH_RANDOM_WEIGHTS_H
#define BENCH_RANDOM_WEIGHTS_H

#include <stdint.h>

#include "ops/qmm/qmm.h"

/* Fills n_out rows of n_in weights: every code and every small scale may occur, and products stay finite. The same
 * seed gives the same bytes. */
void random_weights(void *weights, df2_qmm_type type, int64_t n_out, int64_t n_in, uint32_t seed);

/* Values of either sign, most of them below 1. */
void random_floats(float *values, int64_t n, uint32_t seed);

#endif
