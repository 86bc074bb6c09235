/* From tiles back to ggml's layouts: what pack.c takes apart, this puts together. */
#include <string.h>

#include "ops/qmm/layouts.h"

/* A code is byte i % 4 of the lane of group i / 4. */

static void read_nibbles(uint8_t *codes, const uint8_t *lanes) {
  for (int i = 0; i < 16; ++i) {
    const uint8_t byte = lanes[64 * (i / 4) + i % 4];
    codes[i] |= byte & 0x0f;
    codes[i + 16] |= (uint8_t)(byte >> 4);
  }
}

static void read_pairs(uint8_t *codes, const uint8_t *lanes, int shift) {
  for (int i = 0; i < 32; ++i) {
    const uint8_t byte = lanes[64 * (i / 16) + i % 4];
    codes[i] |= (uint8_t)((byte >> 2 * (i / 4 % 4) & 3) << shift);
  }
}

static void read_bits(uint8_t *codes, const uint8_t *lanes, int shift) {
  for (int i = 0; i < 32; ++i) {
    codes[i] |= (uint8_t)((lanes[i % 4] >> i / 4 & 1) << shift);
  }
}

/* lanes: the output's in the block's first vector. */
static void read_codes(uint8_t *codes, df2_qmm_codes kind, const uint8_t *lanes) {
  switch (kind) {
    case DF2_CODES_5:
      read_nibbles(codes, lanes);
      read_bits(codes, lanes + 256, 4);
      break;
    case DF2_CODES_6:
      read_nibbles(codes, lanes);
      read_pairs(codes, lanes + 256, 4);
      break;
    case DF2_CODES_3:
      read_pairs(codes, lanes, 0);
      read_bits(codes, lanes + 128, 2);
      break;
    case DF2_CODES_8:
      for (int i = 0; i < 32; ++i) {
        codes[i] = lanes[64 * (i / 4) + i % 4];
      }
      break;
    default:
      read_nibbles(codes, lanes);
      break;
  }
}

static void read_scales(df2_qmm_block *block, df2_qmm_scales kind, const uint8_t *scales, int64_t b, int64_t o) {
  const uint8_t *own = scales + df2_qmm_scale_offset(kind, b);
  const uint8_t *super = scales + df2_qmm_super_offset(kind, b);
  switch (kind) {
    case DF2_SCALES_F16_MIN:
      block->minimum = df2_qmm_read_u16(own + 32 + 2 * o);
      block->scale = df2_qmm_read_u16(own + 2 * o);
      break;
    case DF2_SCALES_F16:
      block->scale = df2_qmm_read_u16(own + 2 * o);
      break;
    case DF2_SCALES_E8M0:
      block->factor[0] = own[o];
      break;
    case DF2_SCALES_K_MIN:
      block->scale = df2_qmm_read_u16(super + 2 * o);
      block->minimum = df2_qmm_read_u16(super + 32 + 2 * o);
      block->factor[0] = own[o];
      block->factor_minimum = own[16 + o];
      break;
    case DF2_SCALES_K_SIGNED:
      block->scale = df2_qmm_read_u16(super + 2 * o);
      block->factor[0] = own[o];
      break;
    case DF2_SCALES_K_HALVES:
      block->scale = df2_qmm_read_u16(super + 2 * o);
      block->factor[0] = own[o];
      block->factor[1] = own[16 + o];
      break;
    case DF2_SCALES_NONE:
      break;
  }
}

static void unpack_float_row(uint8_t *row, df2_qmm_codes codes, const uint8_t *tile, int64_t n_in, int64_t output) {
  const int64_t size = codes == DF2_CODES_F32 ? 4 : 2;
  for (int64_t i = 0; i < n_in; ++i) {
    memcpy(row + i * size, tile + (i * DF2_QMM_TILE + output) * size, (size_t)size);
  }
}

void df2_qmm_unpack_row(void *row, df2_qmm_type type, const void *tile, int64_t n_in, int64_t output) {
  const uint8_t *bytes = tile;
  const df2_qmm_format *format = &df2_qmm_formats[type];
  if (df2_qmm_is_float(format->codes)) {
    unpack_float_row(row, format->codes, bytes, n_in, output);
    return;
  }
  memset(row, 0, df2_qmm_row_bytes(type, n_in));
  const int64_t n_blocks = n_in / DF2_QMM_BLOCK;
  const int64_t code_bytes = df2_qmm_code_bytes(format->codes);
  for (int64_t b = 0; b < n_blocks; ++b) {
    df2_qmm_block found = {0};
    read_codes(found.codes, format->codes, bytes + b * code_bytes + 4 * output);
    read_scales(&found, format->scales, bytes + n_blocks * code_bytes, b, output);
    df2_qmm_write_block(row, type, b, &found);
  }
}
