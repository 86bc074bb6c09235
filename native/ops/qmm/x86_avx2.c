/* AVX2 without VNNI: vpmaddubsw sums pairs of products in 16 bits, so small codes are summed there over several groups
 * and large ones are widened at once; signed codes lend their sign to the activations. */
#define DF2_ISA avx2
#define DF2_SIGNED_BIAS 0
#include "ops/qmm/x86_avx2.inc"

VI vi_dot(vi sum, const v8 *w, const int8_t *x, int n_groups, int largest_code) {
  const __m256i ones = _mm256_set1_epi16(1);
  /* a pair is at most 2 * 127 * largest_code: how many of them fit into 15 bits */
  const int n_narrow = largest_code <= 15 ? 8 : largest_code <= 31 ? 4 : largest_code <= 63 ? 2 : 1;
  for (int first = 0; first < n_groups; first += n_narrow) {
    __m256i pairs = _mm256_setzero_si256();
    for (int g = first; g < first + n_narrow && g < n_groups; ++g) {
      const __m256i group = vi_group(x + 4 * g);
      const __m256i products = largest_code > 63
                                   ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[g]), _mm256_sign_epi8(group, w[g]))
                                   : _mm256_maddubs_epi16(w[g], group);
      pairs = g == first ? products : _mm256_add_epi16(pairs, products);
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  }
  return sum;
}

#include "ops/qmm/tile.inc"
