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
/* A load that the compiler does not repeat for each use, at the expense of other loads. */
DF2_VF vf_load_once(const float *values) {
  vf loaded = vf_load(values);
  __asm__("" : "+v"(loaded));
  return loaded;
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
/* Eight floats, once for each half of the lanes. */
DF2_VF vf_load_twice(const float *values) {
  return _mm512_broadcast_f32x8(_mm256_load_ps(values));
}
/* Eight elements from each of two places, as float32: the first ones in the lower half of the lanes. */
DF2_VF vf_load_two(const float *first, const float *second) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(first)), _mm256_loadu_ps(second), 1);
}
static inline __attribute__((always_inline)) __m256i load_two_halves(const uint8_t *first, const uint8_t *second) {
  const __m128i lower = _mm_loadu_si128((const __m128i *)first);
  return _mm256_inserti128_si256(_mm256_castsi128_si256(lower), _mm_loadu_si128((const __m128i *)second), 1);
}
DF2_VF vf_from_two_f16(const uint8_t *first, const uint8_t *second) {
  return _mm512_cvtph_ps(load_two_halves(first, second));
}
DF2_VF vf_from_two_bf16(const uint8_t *first, const uint8_t *second) {
  const __m512i words = _mm512_cvtepu16_epi32(load_two_halves(first, second));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
DF2_VF vf_from_two_s8(const uint8_t *first, const uint8_t *second) {
  const __m128i lower = _mm_loadl_epi64((const __m128i *)first);
  const __m128i bytes = _mm_unpacklo_epi64(lower, _mm_loadl_epi64((const __m128i *)second));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
DF2_VF vf_set_two_f16(const uint8_t *first, const uint8_t *second) {
  const __m256i lower = _mm256_set1_epi16((short)(first[0] | first[1] << 8));
  const __m256i upper = _mm256_set1_epi16((short)(second[0] | second[1] << 8));
  return _mm512_cvtph_ps(_mm256_blend_epi32(lower, upper, 0xf0));
}
/* Totals of the eight floats that each of 16 keys has in eight vectors, its parts: part 2 m + i has those of key
 * m + 4 i and, in its upper half, of key m + 4 i + 8. First halves are added, then neighbours: (0 + 1) + (2 + 3).
 *
 * vf_pairs: of four parts, the sums of two floats. What is added never lies in the same lanes of two vectors; blends,
 * which most units can do, leave one shuffle per addition. */
DF2_VF vf_pairs(const vf parts[4]) {
  vf halves[2];
  for (int i = 0; i < 2; ++i) {
    const vf a = parts[2 * i], b = parts[2 * i + 1];
    const vf crossed = _mm512_mask_blend_ps(0xf0f0, b, a);
    halves[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xf0f0, a, b), _mm512_shuffle_f32x4(crossed, crossed, 0xb1));
  }
  const vf crossed = _mm512_mask_blend_ps(0xaaaa, halves[1], halves[0]);
  return _mm512_add_ps(_mm512_mask_blend_ps(0xaaaa, halves[0], halves[1]), _mm512_permute_ps(crossed, 0xb1));
}
/* Of parts 0 to 3 and of parts 4 to 7. */
DF2_VF vf_totals(vf first_pairs, vf last_pairs) {
  const __m512d a = _mm512_castps_pd(first_pairs), b = _mm512_castps_pd(last_pairs);
  const __m512d straight = _mm512_mask_blend_pd(0xaa, a, b);
  return _mm512_add_ps(_mm512_castpd_ps(straight), _mm512_castpd_ps(_mm512_shuffle_pd(a, b, 0x55)));
}

#endif
