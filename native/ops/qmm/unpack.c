/* From tiles back to ggml's block layouts: what pack.c takes apart, this puts together. */
#include <string.h>

#include "ops/qmm/formats.h"

/* One output's block of 32 inputs, as in pack.c. */
typedef struct block {
  uint8_t codes[DF2_QMM_BLOCK];
  uint16_t scale;
  uint16_t minimum;
  uint8_t factor[2];
  uint8_t factor_minimum;
} block;

static uint16_t read_u16(const uint8_t *bytes) {
  return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static void write_u16(uint8_t *bytes, uint16_t value) {
  bytes[0] = (uint8_t)value;
  bytes[1] = (uint8_t)(value >> 8);
}

/* From a tile: a code is byte i % 4 of the lane of group i / 4 */

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

static void read_scales(block *block, df2_qmm_scales kind, const uint8_t *scales, int64_t b, int64_t o) {
  const uint8_t *own = scales + df2_qmm_scale_offset(kind, b);
  const uint8_t *super = scales + df2_qmm_super_offset(kind, b);
  switch (kind) {
    case DF2_SCALES_F16_MIN:
      block->minimum = read_u16(own + 32 + 2 * o);
      block->scale = read_u16(own + 2 * o);
      break;
    case DF2_SCALES_F16:
      block->scale = read_u16(own + 2 * o);
      break;
    case DF2_SCALES_E8M0:
      block->factor[0] = own[o];
      break;
    case DF2_SCALES_K_MIN:
      block->scale = read_u16(super + 2 * o);
      block->minimum = read_u16(super + 32 + 2 * o);
      block->factor[0] = own[o];
      block->factor_minimum = own[16 + o];
      break;
    case DF2_SCALES_K_SIGNED:
      block->scale = read_u16(super + 2 * o);
      block->factor[0] = own[o];
      break;
    case DF2_SCALES_K_HALVES:
      block->scale = read_u16(super + 2 * o);
      block->factor[0] = own[o];
      block->factor[1] = own[16 + o];
      break;
    case DF2_SCALES_NONE:
      break;
  }
}

/* To ggml's blocks, whose bytes are zero before the first of their parts is written */

static void write_nibbles(uint8_t *bytes, const uint8_t *codes) {
  for (int i = 0; i < 16; ++i) {
    bytes[i] = (uint8_t)((codes[i] & 0x0f) | codes[i + 16] << 4);
  }
}

static void write_fifth_bits(uint8_t *bytes, const uint8_t *codes) {
  for (int i = 0; i < 32; ++i) {
    bytes[i / 8] |= (uint8_t)((codes[i] >> 4) << i % 8);
  }
}

/* The 12 bytes that q4_K and q5_K share. */
static void write_k_factors(uint8_t *bytes, const block *block, int b) {
  const uint8_t scale = block->factor[0];
  const uint8_t minimum = block->factor_minimum;
  if (b < 4) {
    bytes[b] |= scale;
    bytes[b + 4] |= minimum;
  } else {
    bytes[b + 4] |= (uint8_t)((scale & 0x0f) | minimum << 4);
    bytes[b - 4] |= (uint8_t)(scale >> 4 << 6);
    bytes[b] |= (uint8_t)(minimum >> 4 << 6);
  }
}

static void write_q45_k(uint8_t *bytes, const block *block, int b, bool has_fifth_bits) {
  write_u16(bytes, block->scale);
  write_u16(bytes + 2, block->minimum ^ 0x8000u);
  write_k_factors(bytes + 4, block, b);
  uint8_t *nibbles = bytes + (has_fifth_bits ? 48 : 16) + b / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    nibbles[i] |= (uint8_t)((block->codes[i] & 0x0f) << b % 2 * 4);
    if (has_fifth_bits) {
      bytes[16 + i] |= (uint8_t)(block->codes[i] >> 4 << b);
    }
  }
}

static void write_q6_k(uint8_t *bytes, const block *block, int b) {
  const int quarter = b % 4;
  uint8_t *lower = bytes + b / 4 * 64 + quarter % 2 * 32;
  uint8_t *upper = bytes + 128 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    lower[i] |= (uint8_t)((block->codes[i] & 0x0f) << (quarter < 2 ? 0 : 4));
    upper[i] |= (uint8_t)(block->codes[i] >> 4 << 2 * quarter);
  }
  bytes[192 + 2 * b] = block->factor[0];
  bytes[192 + 2 * b + 1] = block->factor[1];
  write_u16(bytes + 208, block->scale);
}

static void write_q3_k_factor(uint8_t *bytes, uint8_t factor, int index) {
  const int value = (factor + 32) & 63;
  bytes[index % 8] |= (uint8_t)((value & 0x0f) << index / 8 * 4);
  bytes[8 + index % 4] |= (uint8_t)(value >> 4 << index / 4 * 2);
}

static void write_q3_k(uint8_t *bytes, const block *block, int b) {
  uint8_t *pairs = bytes + 32 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    bytes[i] |= (uint8_t)(block->codes[i] >> 2 << b);
    pairs[i] |= (uint8_t)((block->codes[i] & 3) << b % 4 * 2);
  }
  write_q3_k_factor(bytes + 96, block->factor[0], 2 * b);
  write_q3_k_factor(bytes + 96, block->factor[1], 2 * b + 1);
  write_u16(bytes + 108, block->scale);
}

static void write_iq4_xs(uint8_t *bytes, const block *block, int b) {
  const int value = (block->factor[0] + 32) & 63;
  write_u16(bytes, block->scale);
  bytes[2 + b / 4] |= (uint8_t)(value >> 4 << b % 4 * 2);
  bytes[4 + b / 2] |= (uint8_t)((value & 0x0f) << b % 2 * 4);
  write_nibbles(bytes + 8 + b * 16, block->codes);
}

static void write_block(uint8_t *row, df2_qmm_type type, int64_t index, const block *block) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t per_granule = format->granularity / DF2_QMM_BLOCK;
  uint8_t *bytes = row + index / per_granule * format->granule_bytes;
  const int b = (int)(index % per_granule);
  switch (type) {
    case DF2_QMM_Q4_0:
    case DF2_QMM_IQ4_NL:
      write_u16(bytes, block->scale);
      write_nibbles(bytes + 2, block->codes);
      break;
    case DF2_QMM_Q4_1:
      write_u16(bytes, block->scale);
      write_u16(bytes + 2, block->minimum);
      write_nibbles(bytes + 4, block->codes);
      break;
    case DF2_QMM_Q5_0:
      write_u16(bytes, block->scale);
      write_fifth_bits(bytes + 2, block->codes);
      write_nibbles(bytes + 6, block->codes);
      break;
    case DF2_QMM_Q5_1:
      write_u16(bytes, block->scale);
      write_u16(bytes + 2, block->minimum);
      write_fifth_bits(bytes + 4, block->codes);
      write_nibbles(bytes + 8, block->codes);
      break;
    case DF2_QMM_Q8_0:
      write_u16(bytes, block->scale);
      memcpy(bytes + 2, block->codes, 32);
      break;
    case DF2_QMM_Q3_K:
      write_q3_k(bytes, block, b);
      break;
    case DF2_QMM_Q4_K:
      write_q45_k(bytes, block, b, false);
      break;
    case DF2_QMM_Q5_K:
      write_q45_k(bytes, block, b, true);
      break;
    case DF2_QMM_Q6_K:
      write_q6_k(bytes, block, b);
      break;
    case DF2_QMM_IQ4_XS:
      write_iq4_xs(bytes, block, b);
      break;
    case DF2_QMM_MXFP4:
      bytes[0] = block->factor[0];
      write_nibbles(bytes + 1, block->codes);
      break;
    default:
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
    block found = {0};
    read_codes(found.codes, format->codes, bytes + b * code_bytes + 4 * output);
    read_scales(&found, format->scales, bytes + n_blocks * code_bytes, b, output);
    write_block(row, type, b, &found);
  }
}
