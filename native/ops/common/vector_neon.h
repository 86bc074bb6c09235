/* Float primitives for kernels written once for all instruction sets: NEON. A vector is two registers: loops then have
 * two independent operations at hand, and 8-bit and 16-bit values fill what is loaded at once. */
#ifndef DF2_OPS_COMMON_VECTOR_NEON_H
#define DF2_OPS_COMMON_VECTOR_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#define DF2_LANES 8

typedef struct vf {
  float32x4_t part[2];
} vf;

#define DF2_VF static inline __attribute__((always_inline)) vf
#define DF2_VOID static inline __attribute__((always_inline)) void

DF2_VF vf_set1(float value) {
  return (vf){{vdupq_n_f32(value), vdupq_n_f32(value)}};
}
DF2_VF vf_set2(float lower, float upper) {
  return (vf){{vdupq_n_f32(lower), vdupq_n_f32(upper)}};
}
DF2_VF vf_load(const float *values) {
  return (vf){{vld1q_f32(values), vld1q_f32(values + 4)}};
}
DF2_VF vf_load_once(const float *values) {
  return vf_load(values);
}
DF2_VF vf_loadu(const float *values) {
  return vf_load(values);
}
DF2_VOID vf_store(float *values, vf a) {
  vst1q_f32(values, a.part[0]);
  vst1q_f32(values + 4, a.part[1]);
}
DF2_VOID vf_storeu(float *values, vf a) {
  vf_store(values, a);
}
DF2_VF vf_add(vf a, vf b) {
  return (vf){{vaddq_f32(a.part[0], b.part[0]), vaddq_f32(a.part[1], b.part[1])}};
}
DF2_VF vf_sub(vf a, vf b) {
  return (vf){{vsubq_f32(a.part[0], b.part[0]), vsubq_f32(a.part[1], b.part[1])}};
}
DF2_VF vf_mul(vf a, vf b) {
  return (vf){{vmulq_f32(a.part[0], b.part[0]), vmulq_f32(a.part[1], b.part[1])}};
}
DF2_VF vf_div(vf a, vf b) {
  return (vf){{vdivq_f32(a.part[0], b.part[0]), vdivq_f32(a.part[1], b.part[1])}};
}
DF2_VF vf_fma(vf a, vf b, vf c) {
  return (vf){{vfmaq_f32(c.part[0], a.part[0], b.part[0]), vfmaq_f32(c.part[1], a.part[1], b.part[1])}};
}
DF2_VF vf_max(vf a, vf b) {
  return (vf){{vmaxq_f32(a.part[0], b.part[0]), vmaxq_f32(a.part[1], b.part[1])}};
}
DF2_VF vf_min(vf a, vf b) {
  return (vf){{vminq_f32(a.part[0], b.part[0]), vminq_f32(a.part[1], b.part[1])}};
}
static inline __attribute__((always_inline)) float vf_largest_lane(vf a) {
  return vmaxvq_f32(vmaxq_f32(a.part[0], a.part[1]));
}
DF2_VF vf_larger(vf a, vf b) {
  return (vf){{vbslq_f32(vcgtq_f32(a.part[0], b.part[0]), a.part[0], b.part[0]),
               vbslq_f32(vcgtq_f32(a.part[1], b.part[1]), a.part[1], b.part[1])}};
}
static inline __attribute__((always_inline)) uint32_t vf_greater_lanes(vf a, vf b) {
  static const uint16_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x4_t low = vmovn_u32(vcgtq_f32(a.part[0], b.part[0]));
  const uint16x8_t is_greater = vmovn_high_u32(low, vcgtq_f32(a.part[1], b.part[1]));
  return vaddvq_u16(vandq_u16(is_greater, vld1q_u16(bits)));
}
DF2_VF vf_from_f16(const uint8_t *halves) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(halves));
  return (vf){{vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)}};
}
DF2_VF vf_from_bf16(const uint8_t *halves) {
  const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(halves));
  return (vf){
      {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))}};
}
typedef uint8x8_t vb;
#define DF2_VB static inline __attribute__((always_inline)) vb

DF2_VB vb_loadu(const uint8_t *bytes) {
  return vld1_u8(bytes);
}
DF2_VB vb_half(vb a, int shift) {
  return vand_u8(vshl_u8(a, vdup_n_s8((int8_t)-shift)), vdup_n_u8(15));
}
DF2_VB vb_add_fifth_bits(vb a, const uint8_t *bits, int i) {
  const vb lanes = vcreate_u8(0x8040201008040201);
  return vorr_u8(a, vand_u8(vtst_u8(vdup_n_u8(bits[i / 8]), lanes), vdup_n_u8(16)));
}
DF2_VB vb_look_up(const int8_t *table, vb a) {
  return vreinterpret_u8_s8(vqtbl1_s8(vld1q_s8(table), a));
}
DF2_VF vf_from_signed(vb a) {
  const int16x8_t h = vmovl_s8(vreinterpret_s8_u8(a));
  return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), vcvtq_f32_s32(vmovl_high_s16(h))}};
}
DF2_VF vf_from_s8(const uint8_t *bytes) {
  return vf_from_signed(vb_loadu(bytes));
}
DF2_VF vf_set1_f16(const uint8_t *half) {
  const float32x4_t value = vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16((const uint16_t *)(const void *)half)));
  return (vf){{value, value}};
}
DF2_VF vf_scale_by_power(vf a, vf shifted) {
  for (int i = 0; i < 2; ++i) {
    const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(shifted.part[i]), 23);
    a.part[i] = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(a.part[i]), power));
  }
  return a;
}
DF2_VF vf_zero_below(vf a, vf x, float bound) {
  for (int i = 0; i < 2; ++i) {
    const uint32x4_t is_below = vcltq_f32(x.part[i], vdupq_n_f32(bound));
    a.part[i] = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(a.part[i]), is_below));
  }
  return a;
}
#define VF_COLUMNS 4
DF2_VOID vf_load_columns(vf columns[VF_COLUMNS], const float *rows, int64_t stride) {
  for (int i = 0; i < 2; ++i) {
    float32x4_t row[4];
    for (int r = 0; r < 4; ++r) {
      row[r] = vld1q_f32(rows + (4 * i + r) * stride);
    }
    const float64x2_t even01 = vreinterpretq_f64_f32(vtrn1q_f32(row[0], row[1]));
    const float64x2_t even23 = vreinterpretq_f64_f32(vtrn1q_f32(row[2], row[3]));
    const float64x2_t odd01 = vreinterpretq_f64_f32(vtrn2q_f32(row[0], row[1]));
    const float64x2_t odd23 = vreinterpretq_f64_f32(vtrn2q_f32(row[2], row[3]));
    columns[0].part[i] = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
    columns[1].part[i] = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
    columns[2].part[i] = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
    columns[3].part[i] = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
  }
}
/* Totals as in vector_avx512.h, of eight keys: part 2 m + i has the eight floats of key m + 4 i. Pairs lie as vpaddq
 * leaves them, not as vf_pairs of x86 does. */
DF2_VF vf_pairs(const vf parts[4]) {
  vf pairs;
  for (int i = 0; i < 2; ++i) {
    pairs.part[i] = vpaddq_f32(vaddq_f32(parts[i].part[0], parts[i].part[1]),
                               vaddq_f32(parts[2 + i].part[0], parts[2 + i].part[1]));
  }
  return pairs;
}
DF2_VF vf_totals(vf first_pairs, vf last_pairs) {
  return (vf){
      {vpaddq_f32(first_pairs.part[0], last_pairs.part[0]), vpaddq_f32(first_pairs.part[1], last_pairs.part[1])}};
}

#endif
