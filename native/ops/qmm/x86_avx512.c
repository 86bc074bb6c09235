/* AVX-512 with VNNI: one vector is a whole tile. vpdpbusd wants unsigned weights, so signed codes are moved up by 128.
 */
#include "ops/common/vector_avx512.h"

#define DF2_ISA avx512
#define DF2_SIGNED_BIAS 128

typedef __m512i v8;
typedef __m512i vi;

#define V8 static inline __attribute__((always_inline)) v8
#define VI static inline __attribute__((always_inline)) vi

V8 v8_load(const uint8_t *bytes) {
  return _mm512_loadu_si512(bytes);
}
V8 v8_and(v8 a, uint8_t mask) {
  return _mm512_and_si512(a, _mm512_set1_epi8((char)mask));
}
V8 v8_or_masked(v8 a, v8 b, uint8_t mask) {
  return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)mask), 0xf8); /* a | (b & mask) */
}
V8 v8_shl(v8 a, int n) {
  return n == 0 ? a : _mm512_slli_epi16(a, (unsigned)n);
}
V8 v8_shr(v8 a, int n) {
  return n == 0 ? a : _mm512_srli_epi16(a, (unsigned)n);
}
V8 v8_signed(v8 a) {
  return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80));
}
V8 v8_table(const int8_t *values) {
  return v8_signed(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)values)));
}
V8 v8_lookup(v8 table, v8 indices) {
  return _mm512_shuffle_epi8(table, indices);
}

VI vi_zero(void) {
  return _mm512_setzero_si512();
}
VI vi_set1(int32_t value) {
  return _mm512_set1_epi32(value);
}
VI vi_dot(vi sum, const v8 *w, const int8_t *x, int n_groups, int largest_code) {
  (void)largest_code;
  for (int g = 0; g < n_groups; ++g) {
    sum = _mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(*(const int32_t *)(const void *)(x + 4 * g)));
  }
  return sum;
}

DF2_VF vf_from_int(vi a) {
  return _mm512_cvtepi32_ps(a);
}
DF2_VF vf_from_u8(const uint8_t *bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes)));
}
DF2_VF vf_from_exponent(const uint8_t *bytes) {
  const __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 23));
}

/* prepare.inc's, with the conversion's own rounding to the nearest, ties to even. */
static inline __attribute__((always_inline)) float quantize_block_avx512(int8_t *codes, int32_t sums[2],
                                                                         const float *x) {
  const __m512 low = _mm512_loadu_ps(x);
  const __m512 high = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                           _mm512_and_si512(_mm512_castps_si512(high), magnitude));
  const int32_t amax_bits = _mm512_reduce_max_epi32(largest);
  const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(amax_bits)));
  if (amax_bits >= 0x7f800000 || amax < 0x1p-100f) {
    _mm256_storeu_si256((__m256i *)codes, _mm256_setzero_si256());
    sums[0] = 0;
    sums[1] = 0;
    return amax_bits >= 0x7f800000 ? amax - amax : 0.0f;
  }
  const __m512 inverse = _mm512_set1_ps(127.0f / amax);
  const __m128i low_codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
  const __m128i high_codes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low_codes), high_codes, 1);
  _mm256_storeu_si256((__m256i *)codes, both);
  __m256i quads = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
  quads = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0x4e));
  quads = _mm256_add_epi32(quads, _mm256_shuffle_epi32(quads, 0xb1));
  sums[0] = _mm256_extract_epi32(quads, 0);
  sums[1] = _mm256_extract_epi32(quads, 4);
  return amax * (1.0f / 127.0f);
}
#define DF2_QUANTIZE_BLOCK quantize_block_avx512

#include "ops/qmm/tile.inc"
