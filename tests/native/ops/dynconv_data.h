/* Seeded inputs and coefficients for test_dynconv.c. */
#ifndef DF2_TESTS_OPS_DYNCONV_DATA_H
#define DF2_TESTS_OPS_DYNCONV_DATA_H

#include "harness.h"
#include "ops/dynconv/dynconv.h"

/* Every buffer ends with the last byte it needs. */
typedef struct dynconv_problem {
  df2_dynconv_shape shape;
  int64_t n_rows;
  df2_dynconv_side side;
  const df2_dynconv_side *used_side; /* null: no convolution */
  df2_dynconv_finish finish;
  float *x;
  test_buffer x_memory, base_memory, delta_memory, residual_memory, post_norm_memory, norm_memory;
} dynconv_problem;

/* Ordinary values. What lies between the rows of delta, and its coefficients of taps before the anchor, is NaN: nothing
 * may depend on it. has_side false: no convolution; has_post_norm false: no norm of its result. */
void dynconv_problem_new(dynconv_problem *made, const df2_dynconv_shape *shape, int64_t n_rows, bool has_side,
                         bool has_post_norm, test_random *random);
void dynconv_problem_free(dynconv_problem *problem);

/* Makes inputs and coefficients whole numbers so small that every float32 sum of a convolution is exact. */
void dynconv_make_whole(dynconv_problem *problem, test_random *random);

/* For changing a problem. */
float *dynconv_base_of(const dynconv_problem *problem);
float *dynconv_delta_of(const dynconv_problem *problem, int64_t row, int64_t tap);
float *dynconv_residual_of(const dynconv_problem *problem);
float *dynconv_post_norm_of(const dynconv_problem *problem);

/* Taps of a row that do not lie before the anchor. */
int64_t dynconv_n_taps(const dynconv_problem *problem, int64_t row);

#endif
