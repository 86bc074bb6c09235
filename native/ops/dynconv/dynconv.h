/* Grouped dynamic causal convolution over the positions of one block (DFlash2).
 *
 *   y[i][c] = sum over taps t of (base[t][c] + delta[i][t][c / group_size]) * x[i - t][c]
 *
 * with x[j] = 0 for j < 0: a block sees nothing before its anchor. One call computes one side (in or out); base and
 * delta point at that side's coefficients. */
#ifndef DF2_OPS_DYNCONV_H
#define DF2_OPS_DYNCONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y, x: [n_rows][n_embd], contiguous, not overlapping. base: [kernel_size][n_embd]. delta: row i begins at
 * delta + i * delta_stride floats and holds [kernel_size][n_embd / group_size]. Computes rows
 * [row_begin, row_end), so that threads may share a block. Requires n_embd % group_size == 0. */
void df2_dynconv_f32_ref(float *y, const float *x, const float *base, const float *delta, int64_t delta_stride,
                         int64_t row_begin, int64_t row_end, int64_t n_embd, int64_t kernel_size, int64_t group_size);

#ifdef __cplusplus
}
#endif

#endif
