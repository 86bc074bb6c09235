/* Short convolutions over tokens, of each channel alone, as state-space models and their kin begin with.
 *
 *   out[t][c] = sum over k of x[c][t + k] * weights[c][k]
 *
 * A sum begins with 0 and goes by k, each product fused with its addition. Results are therefore the same bits on every
 * instruction set, on any number of threads that share the channels, and for any number of tokens in a call. Kernels
 * own no memory and start no threads.
 *
 * No array needs an alignment beyond float's. */
#ifndef DF2_OPS_SSM_CONV_H
#define DF2_OPS_SSM_CONV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DF2_SSM_CONV_MAX_SIZE 8

typedef struct df2_ssm_conv {
  const float *x;       /* [n_channels][size - 1 + n_tokens]: a channel's inputs lie in a row */
  const float *weights; /* [n_channels][size] */
  int32_t size;         /* tokens that an output is made of: 1 to DF2_SSM_CONV_MAX_SIZE */
  int64_t n_tokens;
  int64_t out_stride; /* floats from an output of one token to that of the next: n_channels or more */
} df2_ssm_conv;

typedef struct df2_ssm_conv_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* out[t * out_stride + c] for all tokens and channels [first_channel, end_channel), of which alone x and weights are
   * read. out does not overlap them. */
  void (*run)(float *out, const df2_ssm_conv *conv, int64_t first_channel, int64_t end_channel);
} df2_ssm_conv_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_ssm_conv_kernel *df2_ssm_conv_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_ssm_conv_kernel *df2_ssm_conv_kernel_at(int32_t index, uint32_t *required_features);

#ifdef __cplusplus
}
#endif

#endif
