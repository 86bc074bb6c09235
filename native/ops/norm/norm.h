/* RMS norm of rows.
 *
 *   rms_norm(v)[c] = v[c] / sqrt((sum over c of v[c]^2) / n_embd + eps)
 *
 * Every operation is rounded on its own. Squares are added as 32 sums, each of every 32nd channel, which are then
 * halved until one is left; the rest of a row is multiplied by the inverse of the root, then by the weight. A row's
 * result is therefore the same bits whichever rows it is computed with, on however many threads, and on every
 * instruction set. Kernels own no memory and start no threads.
 *
 * A NaN makes a NaN of its whole row. So does an infinity, but only of itself: the other values of its row become 0, as
 * all do if their squares leave float32's range.
 *
 * No array needs an alignment beyond float's. Rows are contiguous, n_embd floats each. */
#ifndef DF2_OPS_NORM_H
#define DF2_OPS_NORM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct df2_norm_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* normed[i] = rms_norm(x[i]) * weight for rows [row_begin, row_end), so that threads may share a matrix.
   * normed, x: [n_rows][n_embd]; they may be the same. weight: [n_embd]. */
  void (*norm)(float *normed, const float *x, const float *weight, float eps, int64_t n_embd, int64_t row_begin,
               int64_t row_end);
} df2_norm_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_norm_kernel *df2_norm_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_norm_kernel *df2_norm_kernel_at(int32_t index, uint32_t *required_features);

/* The definition in double precision, for tests: row = rms_norm(row) * weight, [n_embd] each. */
void df2_norm_ref_f64(double *row, const float *weight, float eps, int64_t n_embd);

#ifdef __cplusplus
}
#endif

#endif
