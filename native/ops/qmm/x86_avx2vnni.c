/* AVX2 with the VEX-encoded vpdpbusd. It wants unsigned weights, so signed codes are moved up by 128. */
#define DF2_ISA avx2vnni
#define DF2_SIGNED_BIAS 128
#include "ops/qmm/x86_avx2.inc"

VI vi_dot(vi sum, const v8 *w, const int8_t *x, int n_groups, int largest_code) {
  (void)largest_code;
  for (int g = 0; g < n_groups; ++g) {
    sum = _mm256_dpbusd_avx_epi32(sum, w[g], vi_group(x + 4 * g));
  }
  return sum;
}

#include "ops/qmm/tile.inc"
