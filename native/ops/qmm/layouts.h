/* ggml's own layouts of weights, which are those of the GGUF format, block by block. Private to this folder. */
#ifndef DF2_OPS_QMM_LAYOUTS_H
#define DF2_OPS_QMM_LAYOUTS_H

#include "ops/qmm/formats.h"

/* One output's block of 32 inputs: codes before the bias is taken off (signed for CODES_8), and its scales. */
typedef struct df2_qmm_block {
  uint8_t codes[DF2_QMM_BLOCK];
  uint16_t scale;    /* f16: of the block, or of 256 weights */
  uint16_t minimum;  /* f16, likewise; added, not subtracted */
  uint8_t factor[2]; /* integer scales of the block or its halves, the exponent for e8m0 */
  uint8_t factor_minimum;
} df2_qmm_block;

/* Reads a row's block `index` into one that is zero; and writes it to a row that was zero before its first block. Not
 * for float types. */
void df2_qmm_read_block(df2_qmm_block *out, df2_qmm_type type, const uint8_t *row, int64_t index);
void df2_qmm_write_block(uint8_t *row, df2_qmm_type type, int64_t index, const df2_qmm_block *block);

/* Little-endian integers at any address. */
static inline uint16_t df2_qmm_read_u16(const uint8_t *bytes) {
  return (uint16_t)(bytes[0] | bytes[1] << 8);
}
static inline uint32_t df2_qmm_read_u32(const uint8_t *bytes) {
  return (uint32_t)df2_qmm_read_u16(bytes) | (uint32_t)df2_qmm_read_u16(bytes + 2) << 16;
}
static inline void df2_qmm_write_u16(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)value;
  bytes[1] = (uint8_t)(value >> 8);
}
static inline void df2_qmm_write_u32(uint8_t *bytes, uint32_t value) {
  df2_qmm_write_u16(bytes, value);
  df2_qmm_write_u16(bytes + 2, value >> 16);
}

#endif
