/* The definitions in double precision, and the kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#include "ops/dynconv/tile.inc"
#include "ops/norm/norm.h"

void df2_dynconv_convolve_ref_f64(double *y, const float *x, const df2_dynconv_side *side,
                                  const df2_dynconv_shape *shape, int64_t row) {
  const int64_t n_groups = shape->n_embd / shape->group_size;
  const float *delta = side->delta + row * side->delta_stride;
  for (int64_t c = 0; c < shape->n_embd; ++c) {
    y[c] = 0.0;
    for (int64_t t = 0; t < shape->kernel_size && t <= row; ++t) {
      const double base = (double)side->base[t * shape->n_embd + c];
      const double coefficient = base + (double)delta[t * n_groups + c / shape->group_size];
      y[c] += coefficient * (double)x[(row - t) * shape->n_embd + c];
    }
  }
}

void df2_dynconv_finish_ref_f64(double *sum, double *normed, const float *x, const df2_dynconv_side *side,
                                const df2_dynconv_shape *shape, const df2_dynconv_finish *finish, int64_t row) {
  const int64_t n = shape->n_embd;
  if (side != NULL) {
    df2_dynconv_convolve_ref_f64(sum, x, side, shape, row);
  } else {
    for (int64_t c = 0; c < n; ++c) {
      sum[c] = (double)x[row * n + c];
    }
  }
  if (finish->post_norm != NULL) {
    df2_norm_ref_f64(sum, finish->post_norm, finish->norm_eps, n);
  }
  for (int64_t c = 0; c < n; ++c) {
    sum[c] = (double)finish->scale * ((double)finish->residual[row * n + c] + sum[c]);
    normed[c] = sum[c];
  }
  df2_norm_ref_f64(normed, finish->norm, finish->norm_eps, n);
}
