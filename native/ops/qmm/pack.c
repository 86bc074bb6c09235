/* From ggml's block layouts to tiles. The layouts are those of the GGUF format. */
#include <string.h>

#include "ops/qmm/formats.h"

/* One output's block of 32 inputs: codes before the bias is taken off (signed for CODES_8), and its scales. */
typedef struct block {
  uint8_t codes[DF2_QMM_BLOCK];
  uint16_t scale;    /* f16: of the block, or of 256 weights */
  uint16_t minimum;  /* f16, likewise; added, not subtracted */
  uint8_t factor[2]; /* integer scales of the block or its halves, the exponent for e8m0 */
  uint8_t factor_minimum;
} block;

static uint16_t read_u16(const uint8_t *bytes) {
  return (uint16_t)(bytes[0] | bytes[1] << 8);
}

static uint32_t read_u32(const uint8_t *bytes) {
  return (uint32_t)read_u16(bytes) | (uint32_t)read_u16(bytes + 2) << 16;
}

static uint16_t negate_f16(uint16_t value) {
  return value ^ 0x8000u;
}

/* 16 bytes of nibbles: inputs 0..15 in the low ones, 16..31 in the high ones. */
static void read_nibbles(uint8_t *codes, const uint8_t *bytes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 0x0f;
    codes[i + 16] = bytes[i] >> 4;
  }
}

static void add_fifth_bits(uint8_t *codes, uint32_t bits) {
  for (int i = 0; i < 32; ++i) {
    codes[i] |= (uint8_t)((bits >> i & 1u) << 4);
  }
}

/* The 6-bit scale and minimum of block b (0..7) out of the 12 bytes that q4_K and q5_K share. */
static void read_k_factors(block *out, const uint8_t *bytes, int b) {
  if (b < 4) {
    out->factor[0] = bytes[b] & 63;
    out->factor_minimum = bytes[b + 4] & 63;
  } else {
    out->factor[0] = (uint8_t)((bytes[b + 4] & 0x0f) | (bytes[b - 4] >> 6) << 4);
    out->factor_minimum = (uint8_t)((bytes[b + 4] >> 4) | (bytes[b] >> 6) << 4);
  }
}

/* q4_K: f16 d, f16 dmin, 12 bytes of factors, 128 of nibbles; q5_K has 32 bytes of fifth bits before the nibbles. */
static void read_q45_k(block *out, const uint8_t *bytes, int b, bool has_fifth_bits) {
  out->scale = read_u16(bytes);
  out->minimum = negate_f16(read_u16(bytes + 2));
  read_k_factors(out, bytes + 4, b);
  const uint8_t *nibbles = bytes + (has_fifth_bits ? 48 : 16) + b / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    out->codes[i] = b % 2 == 0 ? nibbles[i] & 0x0f : nibbles[i] >> 4;
    if (has_fifth_bits) {
      out->codes[i] |= (uint8_t)((bytes[16 + i] >> b & 1) << 4);
    }
  }
}

/* q6_K: 128 bytes of lower nibbles, 64 of upper bit pairs, 16 s8 scales, f16 d. */
static void read_q6_k(block *out, const uint8_t *bytes, int b) {
  const int quarter = b % 4;
  const uint8_t *lower = bytes + b / 4 * 64 + quarter % 2 * 32;
  const uint8_t *upper = bytes + 128 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? lower[i] & 0x0f : lower[i] >> 4;
    out->codes[i] = (uint8_t)(nibble | (upper[i] >> 2 * quarter & 3) << 4);
  }
  out->factor[0] = bytes[192 + 2 * b];
  out->factor[1] = bytes[192 + 2 * b + 1];
  out->scale = read_u16(bytes + 208);
}

/* q3_K's 16 scales of 6 bits: 8 bytes with their lower nibbles, 4 with the upper bit pairs; 32 is taken off. */
static uint8_t read_q3_k_factor(const uint8_t *bytes, int index) {
  const int lower = index < 8 ? bytes[index] & 0x0f : bytes[index - 8] >> 4;
  const int upper = bytes[8 + index % 4] >> (index / 4 * 2) & 3;
  return (uint8_t)(int8_t)((lower | upper << 4) - 32);
}

/* q3_K: 32 bytes of third bits, 64 of bit pairs, 12 of factors, f16 d. A weight is its code minus 4. */
static void read_q3_k(block *out, const uint8_t *bytes, int b) {
  const uint8_t *pairs = bytes + 32 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    out->codes[i] = (uint8_t)((pairs[i] >> b % 4 * 2 & 3) | (bytes[i] >> b & 1) << 2);
  }
  out->factor[0] = read_q3_k_factor(bytes + 96, 2 * b);
  out->factor[1] = read_q3_k_factor(bytes + 96, 2 * b + 1);
  out->scale = read_u16(bytes + 108);
}

/* iq4_xs: f16 d, u16 upper bit pairs of the factors, 4 bytes of their lower nibbles, 128 of nibbles. */
static void read_iq4_xs(block *out, const uint8_t *bytes, int b) {
  const int lower = bytes[4 + b / 2] >> b % 2 * 4 & 0x0f;
  const int upper = read_u16(bytes + 2) >> 2 * b & 3;
  out->scale = read_u16(bytes);
  out->factor[0] = (uint8_t)(int8_t)((lower | upper << 4) - 32);
  read_nibbles(out->codes, bytes + 8 + b * 16);
}

static void read_block(block *out, df2_qmm_type type, const uint8_t *row, int64_t index) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t per_granule = format->granularity / DF2_QMM_BLOCK;
  const uint8_t *bytes = row + index / per_granule * format->granule_bytes;
  const int b = (int)(index % per_granule);
  switch (type) {
    case DF2_QMM_Q4_0:
    case DF2_QMM_IQ4_NL:
      out->scale = read_u16(bytes);
      read_nibbles(out->codes, bytes + 2);
      break;
    case DF2_QMM_Q4_1:
      out->scale = read_u16(bytes);
      out->minimum = read_u16(bytes + 2);
      read_nibbles(out->codes, bytes + 4);
      break;
    case DF2_QMM_Q5_0:
      out->scale = read_u16(bytes);
      read_nibbles(out->codes, bytes + 6);
      add_fifth_bits(out->codes, read_u32(bytes + 2));
      break;
    case DF2_QMM_Q5_1:
      out->scale = read_u16(bytes);
      out->minimum = read_u16(bytes + 2);
      read_nibbles(out->codes, bytes + 8);
      add_fifth_bits(out->codes, read_u32(bytes + 4));
      break;
    case DF2_QMM_Q8_0:
      out->scale = read_u16(bytes);
      memcpy(out->codes, bytes + 2, 32);
      break;
    case DF2_QMM_Q3_K:
      read_q3_k(out, bytes, b);
      break;
    case DF2_QMM_Q4_K:
      read_q45_k(out, bytes, b, false);
      break;
    case DF2_QMM_Q5_K:
      read_q45_k(out, bytes, b, true);
      break;
    case DF2_QMM_Q6_K:
      read_q6_k(out, bytes, b);
      break;
    case DF2_QMM_IQ4_XS:
      read_iq4_xs(out, bytes, b);
      break;
    case DF2_QMM_MXFP4:
      out->factor[0] = bytes[0];
      read_nibbles(out->codes, bytes + 1);
      break;
    default:
      break;
  }
}

/* The four codes of one output and group as a little-endian word: a lane of a vector. */
static uint32_t word(const block *output, int g) {
  return read_u32(output->codes + 4 * g);
}

static void write_u32(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)value;
  bytes[1] = (uint8_t)(value >> 8);
  bytes[2] = (uint8_t)(value >> 16);
  bytes[3] = (uint8_t)(value >> 24);
}

static void write_u16(uint8_t *bytes, uint16_t value) {
  bytes[0] = (uint8_t)value;
  bytes[1] = (uint8_t)(value >> 8);
}

/* Bit pairs of all groups, taken `shift` bits up in each code, as two vectors. */
static void write_pairs(uint8_t *out, const block *output, int shift) {
  for (int half = 0; half < 2; ++half) {
    uint32_t lane = 0;
    for (int i = 0; i < 4; ++i) {
      lane |= (word(output, 4 * half + i) >> shift & 0x03030303u) << 2 * i;
    }
    write_u32(out + 64 * half, lane);
  }
}

/* One bit of all groups as one vector. */
static void write_bits(uint8_t *out, const block *output, int shift) {
  uint32_t lane = 0;
  for (int g = 0; g < 8; ++g) {
    lane |= (word(output, g) >> shift & 0x01010101u) << g;
  }
  write_u32(out, lane);
}

static void write_nibbles(uint8_t *out, const block *output) {
  for (int j = 0; j < 4; ++j) {
    write_u32(out + 64 * j, (word(output, j) & 0x0f0f0f0fu) | (word(output, j + 4) & 0x0f0f0f0fu) << 4);
  }
}

/* out: lane `o` of the block's first code vector. */
static void write_codes(uint8_t *out, df2_qmm_codes codes, const block *output) {
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
        write_u32(out + 64 * g, word(output, g));
      }
      break;
    default:
      write_nibbles(out, output);
      break;
  }
}

static void write_scales(uint8_t *scales, df2_qmm_scales kind, const block *output, int64_t b, int o) {
  uint8_t *own = scales + df2_qmm_scale_offset(kind, b);
  uint8_t *super = scales + df2_qmm_super_offset(kind, b);
  switch (kind) {
    case DF2_SCALES_F16_MIN:
      write_u16(own + 32 + 2 * o, output->minimum);
      write_u16(own + 2 * o, output->scale);
      break;
    case DF2_SCALES_F16:
      write_u16(own + 2 * o, output->scale);
      break;
    case DF2_SCALES_E8M0:
      own[o] = output->factor[0];
      break;
    case DF2_SCALES_K_MIN:
      write_u16(super + 2 * o, output->scale);
      write_u16(super + 32 + 2 * o, output->minimum);
      own[o] = output->factor[0];
      own[16 + o] = output->factor_minimum;
      break;
    case DF2_SCALES_K_SIGNED:
      write_u16(super + 2 * o, output->scale);
      own[o] = output->factor[0];
      break;
    case DF2_SCALES_K_HALVES:
      write_u16(super + 2 * o, output->scale);
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
      block block = {0};
      read_block(&block, type, row, b);
      write_codes(tile + b * df2_qmm_code_bytes(format->codes) + 4 * o, format->codes, &block);
      write_scales(scales, format->scales, &block, b, o);
    }
  }
}
