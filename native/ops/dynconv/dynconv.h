/* Grouped dynamic causal convolution over the positions of one block (DFlash2), alone and as the end of a sublayer,
 * with the norms of ops/norm/norm.h.
 *
 *   conv(x)[i][c] = sum over taps t of (base[t][c] + delta[i][t][c / group_size]) * x[i - t][c]
 *
 * with x[j] = 0 for j < 0: a block sees nothing before its anchor, row 0. All rows of x are in memory; a call computes
 * rows [row_begin, row_end), so that threads may share a block.
 *
 * Every operation is rounded on its own. Taps are added in their order. A row's result is therefore the same bits
 * whichever rows it is computed with, on however many threads, and on every instruction set. Kernels own no memory and
 * start no threads.
 *
 * A NaN makes a NaN of what is computed from it: with a norm, of its whole row.
 *
 * No array needs an alignment beyond float's. Rows are contiguous, n_embd floats each. */
#ifndef DF2_OPS_DYNCONV_H
#define DF2_OPS_DYNCONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct df2_dynconv_shape {
  int64_t n_embd;
  int64_t kernel_size; /* at least 1 */
  int64_t group_size;  /* divides n_embd; multiples of 8 are fast */
} df2_dynconv_shape;

/* The coefficients of one convolution. */
typedef struct df2_dynconv_side {
  const float *base;  /* [kernel_size][n_embd] */
  const float *delta; /* row i: [kernel_size][n_embd / group_size] at delta + i * delta_stride */
  int64_t delta_stride;
} df2_dynconv_side;

/* What follows the convolution that ends a sublayer. */
typedef struct df2_dynconv_finish {
  const float *residual;  /* [n_rows][n_embd], the sublayer's input */
  const float *post_norm; /* [n_embd], weight of a norm of the convolution's result; null: none */
  float scale;            /* of the sum; 1: none */
  const float *norm;      /* [n_embd], weight of the norm that begins the next sublayer */
  float norm_eps;         /* of both norms */
} df2_dynconv_finish;

typedef struct df2_dynconv_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* y[i] = conv(x)[i]. y, x: [n_rows][n_embd], not overlapping. */
  void (*convolve)(float *y, const float *x, const df2_dynconv_side *side, const df2_dynconv_shape *shape,
                   int64_t row_begin, int64_t row_end);

  /* The end of a sublayer and the beginning of the next:
   *
   *   sum[i]    = scale * (residual[i] + rms_norm(conv(x)[i]) * post_norm)     or scale * (residual[i] + conv(x)[i])
   *   normed[i] = rms_norm(sum[i]) * norm
   *
   * sum, normed, x: [n_rows][n_embd]; sum may be residual, otherwise what is written overlaps nothing else.
   * side: null for no convolution, conv(x) = x; of the shape then only n_embd is read. */
  void (*finish)(float *sum, float *normed, const float *x, const df2_dynconv_side *side,
                 const df2_dynconv_shape *shape, const df2_dynconv_finish *finish, int64_t row_begin, int64_t row_end);
} df2_dynconv_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_dynconv_kernel *df2_dynconv_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_dynconv_kernel *df2_dynconv_kernel_at(int32_t index, uint32_t *required_features);

/* The definitions in double precision, for tests: one row, [n_embd] each. */
void df2_dynconv_convolve_ref_f64(double *y, const float *x, const df2_dynconv_side *side,
                                  const df2_dynconv_shape *shape, int64_t row);
void df2_dynconv_finish_ref_f64(double *sum, double *normed, const float *x, const df2_dynconv_side *side,
                                const df2_dynconv_shape *shape, const df2_dynconv_finish *finish, int64_t row);

#ifdef __cplusplus
}
#endif

#endif
