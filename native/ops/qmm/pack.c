/* From ggml's layouts to tiles. */
#include <string.h>

#include "ops/qmm/layouts.h"

/* The four codes of one output and group as a little-endian word: a lane of a vector. */
static uint32_t word(const df2_qmm_block *output, int g) {
  return df2_qmm_read_u32(output->codes + 4 * g);
}

/* Bit pairs of all groups, taken `shift` bits up in each code, as two vectors. */
static void write_pairs(uint8_t *out, const df2_qmm_block *output, int shift) {
  for (int half = 0; half < 2; ++half) {
    uint32_t lane = 0;
    for (int i = 0; i < 4; ++i) {
      lane |= (word(output, 4 * half + i) >> shift & 0x03030303u) << 2 * i;
    }
    df2_qmm_write_u32(out + 64 * half, lane);
  }
}

/* One bit of all groups as one vector. */
static void write_bits(uint8_t *out, const df2_qmm_block *output, int shift) {
  uint32_t lane = 0;
  for (int g = 0; g < 8; ++g) {
    lane |= (word(output, g) >> shift & 0x01010101u) << g;
  }
  df2_qmm_write_u32(out, lane);
}

static void write_nibbles(uint8_t *out, const df2_qmm_block *output) {
  for (int j = 0; j < 4; ++j) {
    df2_qmm_write_u32(out + 64 * j, (word(output, j) & 0x0f0f0f0fu) | (word(output, j + 4) & 0x0f0f0f0fu) << 4);
  }
}

/* out: lane `o` of the block's first code vector. */
static void write_codes(uint8_t *out, df2_qmm_codes codes, const df2_qmm_block *output) {
  switch (codes) {
    case DF2_CODES_5:
      write_bits(out + 256, output, 4);
      write_nibbles(out, output);
      break;
    case DF2_CODES_6:
      write_pairs(out + 256, output, 4);
      write_nibbles(out, output);
      break;
    case DF2_CODES_3:
      write_pairs(out, output, 0);
      write_bits(out + 128, output, 2);
      break;
    case DF2_CODES_8:
      for (int g = 0; g < 8; ++g) {
        df2_qmm_write_u32(out + 64 * g, word(output, g));
      }
      break;
    default:
      write_nibbles(out, output);
      break;
  }
}

static void write_scales(uint8_t *scales, df2_qmm_scales kind, const df2_qmm_block *output, int64_t b, int o) {
  uint8_t *own = scales + df2_qmm_scale_offset(kind, b);
  uint8_t *super = scales + df2_qmm_super_offset(kind, b);
  switch (kind) {
    case DF2_SCALES_F16_MIN:
      df2_qmm_write_u16(own + 32 + 2 * o, output->minimum);
      df2_qmm_write_u16(own + 2 * o, output->scale);
      break;
    case DF2_SCALES_F16:
      df2_qmm_write_u16(own + 2 * o, output->scale);
      break;
    case DF2_SCALES_E8M0:
      own[o] = output->factor[0];
      break;
    case DF2_SCALES_K_MIN:
      df2_qmm_write_u16(super + 2 * o, output->scale);
      df2_qmm_write_u16(super + 32 + 2 * o, output->minimum);
      own[o] = output->factor[0];
      own[16 + o] = output->factor_minimum;
      break;
    case DF2_SCALES_K_SIGNED:
      df2_qmm_write_u16(super + 2 * o, output->scale);
      own[o] = output->factor[0];
      break;
    case DF2_SCALES_K_HALVES:
      df2_qmm_write_u16(super + 2 * o, output->scale);
      own[o] = output->factor[0];
      own[16 + o] = output->factor[1];
      break;
    case DF2_SCALES_NONE:
      break;
  }
}

static void pack_float_output(uint8_t *tile, df2_qmm_codes codes, const uint8_t *row, int64_t n_in, int o) {
  const int size = codes == DF2_CODES_F32 ? 4 : 2;
  for (int64_t i = 0; i < n_in; ++i) {
    memcpy(tile + (i * DF2_QMM_TILE + o) * size, row + i * size, (size_t)size);
  }
}

void df2_qmm_pack_tile(void *packed, df2_qmm_type type, const void *weights, int64_t n_out, int64_t n_in,
                       int64_t tile_index) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const size_t row_bytes = df2_qmm_row_bytes(type, n_in);
  const size_t tile_bytes = df2_qmm_tile_bytes(type, n_in);
  const int64_t n_blocks = n_in / DF2_QMM_BLOCK;
  uint8_t *tile = (uint8_t *)packed + (size_t)tile_index * tile_bytes;
  uint8_t *scales = tile + n_blocks * df2_qmm_code_bytes(format->codes);
  memset(tile, 0, tile_bytes);
  for (int o = 0; o < DF2_QMM_TILE; ++o) {
    const int64_t output = tile_index * DF2_QMM_TILE + o;
    if (output >= n_out) {
      break;
    }
    const uint8_t *row = (const uint8_t *)weights + (size_t)output * row_bytes;
    if (df2_qmm_is_float(format->codes)) {
      pack_float_output(tile, format->codes, row, n_in, o);
      continue;
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
      df2_qmm_block block = {0};
      df2_qmm_read_block(&block, type, row, b);
      write_codes(tile + b * df2_qmm_code_bytes(format->codes) + 4 * o, format->codes, &block);
      write_scales(scales, format->scales, &block, b, o);
    }
  }
}
