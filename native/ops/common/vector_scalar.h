/* Float primitives for kernels written once for all instruction sets: plain C, one lane. */
#ifndef DF2_OPS_COMMON_VECTOR_SCALAR_H
#define DF2_OPS_COMMON_VECTOR_SCALAR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DF2_LANES 1

typedef float vf;

static inline vf vf_set1(float value) {
  return value;
}
static inline vf vf_set2(float lower, float upper) {
  (void)upper; /* one lane has no upper half */
  return lower;
}
static inline vf vf_load(const float *values) {
  return *values;
}
static inline vf vf_load_once(const float *values) {
  return *values;
}
static inline vf vf_loadu(const float *values) {
  return *values;
}
static inline void vf_store(float *values, vf a) {
  *values = a;
}
static inline void vf_storeu(float *values, vf a) {
  *values = a;
}
static inline vf vf_add(vf a, vf b) {
  return a + b;
}
static inline vf vf_sub(vf a, vf b) {
  return a - b;
}
static inline vf vf_mul(vf a, vf b) {
  return a * b;
}
static inline vf vf_div(vf a, vf b) {
  return a / b;
}
static inline vf vf_fma(vf a, vf b, vf c) {
  return fmaf(a, b, c);
}
static inline vf vf_max(vf a, vf b) {
  return a > b ? a : b;
}
static inline vf vf_min(vf a, vf b) {
  return a < b ? a : b;
}
static inline float vf_largest_lane(vf a) {
  return a;
}
static inline vf vf_larger(vf a, vf b) {
  return a > b ? a : b;
}
static inline uint32_t vf_greater_lanes(vf a, vf b) {
  return a > b;
}
static inline vf vf_from_bits(uint32_t bits) {
  vf value;
  memcpy(&value, &bits, 4);
  return value;
}
static inline uint32_t vf_bits(vf a) {
  uint32_t bits;
  memcpy(&bits, &a, 4);
  return bits;
}
static inline vf vf_set1_f16(const uint8_t *half) {
  const uint32_t bits = (uint32_t)(half[0] | half[1] << 8);
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 31u;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const vf magnitude = (float)fraction * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return vf_from_bits(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13);
}
static inline vf vf_from_f16(const uint8_t *halves) {
  return vf_set1_f16(halves);
}
static inline vf vf_from_bf16(const uint8_t *halves) {
  return vf_from_bits((uint32_t)(halves[0] | halves[1] << 8) << 16);
}
typedef uint8_t vb;

static inline vb vb_loadu(const uint8_t *bytes) {
  return *bytes;
}
static inline vb vb_half(vb a, int shift) {
  return (vb)(a >> shift & 15);
}
static inline vb vb_add_fifth_bits(vb a, const uint8_t *bits, int i) {
  return (vb)(a | (bits[i / 8] >> i % 8 & 1) << 4);
}
static inline vb vb_look_up(const int8_t *table, vb a) {
  return (vb)table[a];
}
static inline vf vf_from_signed(vb a) {
  return (float)(int8_t)a;
}
static inline vf vf_from_s8(const uint8_t *bytes) {
  return vf_from_signed(vb_loadu(bytes));
}
static inline vf vf_scale_by_power(vf a, vf shifted) {
  return vf_from_bits(vf_bits(a) + (vf_bits(shifted) << 23));
}
static inline vf vf_zero_below(vf a, vf x, float bound) {
  return x < bound ? 0.0f : a;
}
#define VF_COLUMNS 4
static inline void vf_load_columns(vf columns[VF_COLUMNS], const float *rows, int64_t stride) {
  (void)stride; /* one row */
  memcpy(columns, rows, VF_COLUMNS * sizeof(float));
}
static inline vf vf_pairs(const vf parts[4]) {
  return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}
static inline vf vf_totals(vf first_pairs, vf last_pairs) {
  return first_pairs + last_pairs;
}

#endif
