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
/* DF2_LANES bytes, the codes of quantised values. */
typedef __m128i vb;
#define DF2_VB static inline __attribute__((always_inline)) vb

DF2_VB vb_loadu(const uint8_t *bytes) {
  return _mm_loadu_si128((const __m128i *)bytes);
}
/* Half of each byte, the lower (shift 0) or the upper one (shift 4). */
DF2_VB vb_half(vb a, int shift) {
  return _mm_and_si128(_mm_srl_epi16(a, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
}
/* a + 16 in the lanes whose bit, from bit i on, is set. i is a multiple of DF2_LANES. */
DF2_VB vb_add_fifth_bits(vb a, const uint8_t *bits, int i) {
  return _mm_or_si128(a, _mm_maskz_set1_epi8((__mmask16)(bits[i / 8] | bits[i / 8 + 1] << 8), 16));
}
/* Of a table of 16. */
DF2_VB vb_look_up(const int8_t *table, vb a) {
  return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)table), a);
}
DF2_VF vf_from_signed(vb a) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a));
}
DF2_VF vf_from_s8(const uint8_t *bytes) {
  return vf_from_signed(vb_loadu(bytes));
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
/* VF_COLUMNS floats of each of DF2_LANES rows, which begin `stride` floats apart: column by column. */
#define VF_COLUMNS 4
DF2_VOID vf_load_columns(vf columns[VF_COLUMNS], const float *rows, int64_t stride) {
  vf four[4]; /* rows i, i + 4, i + 8, i + 12 */
  for (int i = 0; i < 4; ++i) {
    four[i] = _mm512_castps128_ps512(_mm_loadu_ps(rows + i * stride));
    four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(rows + (i + 4) * stride), 1);
    four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(rows + (i + 8) * stride), 2);
    four[i] = _mm512_insertf32x4(four[i], _mm_loadu_ps(rows + (i + 12) * stride), 3);
  }
  const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(four[0], four[1]));
  const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(four[2], four[3]));
  const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(four[0], four[1]));
  const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(four[2], four[3]));
  columns[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
  columns[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
  columns[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
  columns[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
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
DF2_VB vb_load_two(const uint8_t *first, const uint8_t *second) {
  return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)first), _mm_loadl_epi64((const __m128i *)second));
}
/* As vb_add_fifth_bits, of eight bits from each of two places. */
DF2_VB vb_add_two_fifth_bits(vb a, const uint8_t *first, const uint8_t *second, int i) {
  return _mm_or_si128(a, _mm_maskz_set1_epi8((__mmask16)(first[i / 8] | second[i / 8] << 8), 16));
}
DF2_VF vf_set_two_f16(const uint8_t *first, const uint8_t *second) {
  const __m256i lower = _mm256_set1_epi16((short)(first[0] | first[1] << 8));
  const __m256i upper = _mm256_set1_epi16((short)(second[0] | second[1] << 8));
  return _mm512_cvtph_ps(_mm256_blend_epi32(lower, upper, 0xf0));
}
/* The sums of the halves of a, and of b in the upper half. */
DF2_VF vf_add_halves(vf a, vf b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
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
