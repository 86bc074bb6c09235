/* The index of the largest of n floats, the lowest among equals (zeros of either sign are equal). NaN counts as minus
 * infinity; 0 if nothing exceeds that. Kernels own no memory and may run on any number of threads. */
#ifndef DF2_OPS_ARGMAX_H
#define DF2_OPS_ARGMAX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct df2_argmax_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* Requires n >= 1; values of any alignment. Reads them once, and a few hundred of them twice. */
  int64_t (*argmax)(const float *values, int64_t n);
} df2_argmax_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_argmax_kernel *df2_argmax_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_argmax_kernel *df2_argmax_kernel_at(int32_t index, uint32_t *required_features);

#ifdef __cplusplus
}
#endif

#endif
