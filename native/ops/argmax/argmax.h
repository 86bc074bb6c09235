/* The index of the largest of n floats, the lowest among equals; NaN is never chosen over a finite number. */
#ifndef DF2_OPS_ARGMAX_H
#define DF2_OPS_ARGMAX_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Requires n >= 1. Returns 0 if nothing exceeds minus infinity. */
int64_t df2_argmax_f32_ref(const float *values, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
