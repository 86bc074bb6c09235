/* Functions made of the primitives of vector_*.h, one of which the including file includes before this one. The same
 * operations in the same order for any number of lanes, so the same bits. */
#ifndef DF2_OPS_COMMON_VECTOR_MATH_H
#define DF2_OPS_COMMON_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ops/common/template.h"

/* exp(x), relative error below 7e-8; 0 below -87, where the result would leave float32's normal range; x <= 88. */
DF2_INLINE vf vf_exp(vf x) {
  const vf magic = vf_set1(12582912.0f);         /* 1.5 * 2^23: leaves no bits for a fraction */
  const vf bounded = vf_max(vf_set1(-87.0f), x); /* in this order, a NaN stays one on x86 too */
  const vf shifted = vf_fma(bounded, vf_set1(0x1.715476p+0f), magic);
  const vf n = vf_sub(shifted, magic);
  vf r = vf_fma(n, vf_set1(-0x1.62e4p-1f), bounded); /* ln 2 in two parts */
  r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
  vf p = vf_set1(0x1.6a23d0p-10f); /* 1/720, 1/120 ..., fitted for the least largest error */
  p = vf_fma(p, r, vf_set1(0x1.123a20p-7f));
  p = vf_fma(p, r, vf_set1(0x1.5558f2p-5f));
  p = vf_fma(p, r, vf_set1(0x1.555492p-3f));
  p = vf_fma(p, r, vf_set1(0x1.fffffcp-2f));
  p = vf_fma(p, r, vf_set1(1.0f));
  p = vf_fma(p, r, vf_set1(1.0f));
  return vf_zero_below(vf_scale_by_power(p, shifted), x, -87.0f);
}

/* n <= DF2_LANES values; zeros follow. */
DF2_INLINE vf load_first(const float *values, int64_t n) {
  if (n == DF2_LANES) {
    return vf_loadu(values);
  }
  float lanes[DF2_LANES] = {0.0f};
  memcpy(lanes, values, (size_t)n * sizeof(float));
  return vf_loadu(lanes);
}

DF2_INLINE void store_first(float *values, vf a, int64_t n) {
  if (n == DF2_LANES) {
    vf_storeu(values, a);
    return;
  }
  float lanes[DF2_LANES];
  vf_storeu(lanes, a);
  memcpy(values, lanes, (size_t)n * sizeof(float));
}

/* Halved until one is left: the same order for any number of lanes. */
DF2_INLINE float sum_of_16(const float *values) {
  float halves[16];
  memcpy(halves, values, sizeof(halves));
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) {
      halves[i] += halves[i + n];
    }
  }
  return halves[0];
}

/* Lane by lane, the largest of `bound`, which is no NaN, and n floats, NaNs left out. n is a multiple of four vectors:
 * their comparisons need not wait for each other, so memory sets the pace. No constant is compared with: clang makes
 * that an instruction which lets signalling NaNs through. */
DF2_INLINE vf vf_largest_of(const float *values, const int64_t n, vf bound) {
  vf largest[4];
  for (int i = 0; i < 4; ++i) {
    largest[i] = bound;
  }
  for (int64_t at = 0; at < n; at += 4 * DF2_LANES) {
    for (int i = 0; i < 4; ++i) {
      largest[i] = vf_larger(vf_loadu(values + at + i * DF2_LANES), largest[i]);
    }
  }
  return vf_max(vf_max(largest[0], largest[1]), vf_max(largest[2], largest[3]));
}

#endif
