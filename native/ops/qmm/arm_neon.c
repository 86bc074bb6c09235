/* AArch64's baseline: products are summed in 16 bits while they fit, for two inputs of two outputs at a time, and
 * neighbours are added when widening. */
#define DF2_ISA neon
#include "ops/qmm/arm_neon.inc"

/* Widens 16-bit sums to [output][2]; then outputs' pairs are added. */
static inline __attribute__((always_inline)) int32x4_t widen(int32x4_t sum, int16x8_t low, int16x8_t high) {
  return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

VI vi_dot(vi sum, const v8 *w, const int8_t *x, int n_groups, int largest_code) {
  /* a lane gets one product per group, of at most 127 or 128 * 127 */
  const int n_narrow = largest_code <= 31 ? 8 : largest_code <= 63 ? 4 : 2;
  for (int first = 0; first < n_groups; first += n_narrow) {
    int16x8_t low[2], high[2];
    for (int g = first; g < first + n_narrow && g < n_groups; ++g) {
      int32_t group;
      memcpy(&group, x + 4 * g, 4);
      const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(group));
      for (int i = 0; i < 2; ++i) {
        const int8x16_t codes = vreinterpretq_s8_u8(w[g].part[i]);
        if (g == first) {
          low[i] = vmull_s8(vget_low_s8(codes), vget_low_s8(a));
          high[i] = vmull_high_s8(codes, a);
        } else {
          low[i] = vmlal_s8(low[i], vget_low_s8(codes), vget_low_s8(a));
          high[i] = vmlal_high_s8(high[i], codes, a);
        }
      }
    }
    sum.part[0] = widen(sum.part[0], low[0], high[0]);
    sum.part[1] = widen(sum.part[1], low[1], high[1]);
  }
  return sum;
}

#include "ops/qmm/tile.inc"
