/* Float primitives for kernels written once for all instruction sets: AVX2 with FMA and F16C. */
#ifndef DF2_OPS_COMMON_VECTOR_AVX2_H
#define DF2_OPS_COMMON_VECTOR_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define DF2_LANES 8

typedef __m256 vf;

#define DF2_VF static inline __attribute__((always_inline)) vf
#define DF2_VOID static inline __attribute__((always_inline)) void

DF2_VF vf_set1(float value) {
  return _mm256_set1_ps(value);
}
DF2_VF vf_set2(float lower, float upper) {
  return _mm256_insertf128_ps(_mm256_set1_ps(lower), _mm_set1_ps(upper), 1);
}
DF2_VF vf_load(const float *values) {
  return _mm256_load_ps(values);
}
DF2_VF vf_loadu(const float *values) {
  return _mm256_loadu_ps(values);
}
/* A load that the compiler does not repeat for each use, at the expense of other loads. */
DF2_VF vf_load_once(const float *values) {
  vf loaded = vf_load(values);
  __asm__("" : "+x"(loaded));
  return loaded;
}
DF2_VOID vf_store(float *values, vf a) {
  _mm256_store_ps(values, a);
}
DF2_VOID vf_storeu(float *values, vf a) {
  _mm256_storeu_ps(values, a);
}
DF2_VF vf_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
DF2_VF vf_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
DF2_VF vf_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
DF2_VF vf_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
DF2_VF vf_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
DF2_VF vf_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
DF2_VF vf_min(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
static inline __attribute__((always_inline)) float vf_largest_lane(vf a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
DF2_VF vf_larger(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
static inline __attribute__((always_inline)) uint32_t vf_greater_lanes(vf a, vf b) {
  return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
DF2_VF vf_from_f16(const uint8_t *halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
}
DF2_VF vf_from_bf16(const uint8_t *halves) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)halves));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
typedef __m128i vb; /* in the lower half */
#define DF2_VB static inline __attribute__((always_inline)) vb

DF2_VB vb_loadu(const uint8_t *bytes) {
  return _mm_loadl_epi64((const __m128i *)bytes);
}
DF2_VB vb_half(vb a, int shift) {
  return _mm_and_si128(_mm_srl_epi16(a, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
}
DF2_VB vb_add_fifth_bits(vb a, const uint8_t *bits, int i) {
  const vb lanes = _mm_set1_epi64x((long long)0x8040201008040201);
  const vb is_set = _mm_cmpeq_epi8(_mm_and_si128(_mm_set1_epi8((char)bits[i / 8]), lanes), lanes);
  return _mm_or_si128(a, _mm_and_si128(is_set, _mm_set1_epi8(16)));
}
DF2_VB vb_look_up(const int8_t *table, vb a) {
  return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)table), a);
}
DF2_VF vf_from_signed(vb a) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(a));
}
DF2_VF vf_from_s8(const uint8_t *bytes) {
  return vf_from_signed(vb_loadu(bytes));
}
DF2_VF vf_set1_f16(const uint8_t *half) {
  return _mm256_set1_ps(_cvtsh_ss((unsigned short)(half[0] | half[1] << 8)));
}
DF2_VF vf_scale_by_power(vf a, vf shifted) {
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), power));
}
DF2_VF vf_zero_below(vf a, vf x, float bound) {
  return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(bound), _CMP_NLT_UQ), a);
}
#define VF_COLUMNS 4
DF2_VOID vf_load_columns(vf columns[VF_COLUMNS], const float *rows, int64_t stride) {
  vf two[4]; /* rows i and i + 4 */
  for (int i = 0; i < 4; ++i) {
    two[i] = _mm256_castps128_ps256(_mm_loadu_ps(rows + i * stride));
    two[i] = _mm256_insertf128_ps(two[i], _mm_loadu_ps(rows + (i + 4) * stride), 1);
  }
  const __m256d low01 = _mm256_castps_pd(_mm256_unpacklo_ps(two[0], two[1]));
  const __m256d low23 = _mm256_castps_pd(_mm256_unpacklo_ps(two[2], two[3]));
  const __m256d high01 = _mm256_castps_pd(_mm256_unpackhi_ps(two[0], two[1]));
  const __m256d high23 = _mm256_castps_pd(_mm256_unpackhi_ps(two[2], two[3]));
  columns[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23));
  columns[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23));
  columns[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23));
  columns[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23));
}
/* Totals as in vector_avx512.h, of eight keys: part 2 m + i has the eight floats of key m + 4 i. */
DF2_VF vf_pairs(const vf parts[4]) {
  vf halves[2];
  for (int i = 0; i < 2; ++i) {
    const vf a = parts[2 * i], b = parts[2 * i + 1];
    halves[i] = _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
  }
  const vf crossed = _mm256_blend_ps(halves[1], halves[0], 0xaa);
  return _mm256_add_ps(_mm256_blend_ps(halves[0], halves[1], 0xaa), _mm256_permute_ps(crossed, 0xb1));
}
DF2_VF vf_totals(vf first_pairs, vf last_pairs) {
  const __m256d a = _mm256_castps_pd(first_pairs), b = _mm256_castps_pd(last_pairs);
  const __m256d straight = _mm256_blend_pd(a, b, 0xa);
  return _mm256_add_ps(_mm256_castpd_ps(straight), _mm256_castpd_ps(_mm256_shuffle_pd(a, b, 0x5)));
}

#endif
