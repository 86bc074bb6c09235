/* Float primitives for kernels written once for all instruction sets: AVX-512. Every vector_*.h has the same names. */
#ifndef DF2_OPS_COMMON_VECTOR_AVX512_H
#define DF2_OPS_COMMON_VECTOR_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define DF2_LANES 16

typedef __m512 vf;

#define DF2_VF static inline __attribute__((always_inline)) vf
#define DF2_VOID static inline __attribute__((always_inline)) void

DF2_VF vf_set1(float value) {
  return _mm512_set1_ps(value);
}
/* One value in the lower half of the lanes, one in the upper. */
DF2_VF vf_set2(float lower, float upper) {
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(lower), 0xff00, _mm_set_ss(upper));
}
DF2_VF vf_load(const float *values) {
  return _mm512_load_ps(values);
}
DF2_VF vf_loadu(const float *values) {
  return _mm512_loadu_ps(values);
}
DF2_VOID vf_store(float *values, vf a) {
  _mm512_store_ps(values, a);
}
DF2_VOID vf_storeu(float *values, vf a) {
  _mm512_storeu_ps(values, a);
}
DF2_VF vf_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
DF2_VF vf_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
DF2_VF vf_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
DF2_VF vf_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
DF2_VF vf_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
DF2_VF vf_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
DF2_VF vf_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
static inline __attribute__((always_inline)) float vf_largest_lane(vf a) {
  return _mm512_reduce_max_ps(a);
}
/* a where a > b, else b: what vf_max is on x86, but not on ARM if either is NaN. */
DF2_VF vf_larger(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
/* Bit i: whether a > b in lane i. */
static inline __attribute__((always_inline)) uint32_t vf_greater_lanes(vf a, vf b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
DF2_VF vf_from_f16(const uint8_t *halves) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
}
DF2_VF vf_from_bf16(const uint8_t *halves) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)halves));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
DF2_VF vf_from_s8(const uint8_t *bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)bytes)));
}
/* One f16 in every lane. */
DF2_VF vf_set1_f16(const uint8_t *half) {
  return _mm512_cvtph_ps(_mm256_set1_epi16((short)(half[0] | half[1] << 8)));
}
/* a * 2^n, where n is the low bits of 1.5 * 2^23 + n; no check of the result's range. */
DF2_VF vf_scale_by_power(vf a, vf shifted) {
  const __m512i power = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), power));
}
/* a, but 0 where x < bound. */
DF2_VF vf_zero_below(vf a, vf x, float bound) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_NLT_UQ), a);
}
/* The transpose of DF2_LANES x DF2_LANES floats, in place. */
DF2_VOID vf_transpose(vf r[16]) {
  vf t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int h = 0; h < 2; ++h) {
      const __m512d low = _mm512_castps_pd(t[i + h]);
      const __m512d high = _mm512_castps_pd(t[i + 2 + h]);
      r[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      r[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0x88);
    t[8 + i] = _mm512_shuffle_f32x4(r[i], r[4 + i], 0xdd);
    t[12 + i] = _mm512_shuffle_f32x4(r[8 + i], r[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88);
    r[8 + i] = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
  }
}

#endif
