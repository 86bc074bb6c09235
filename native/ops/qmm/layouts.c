#include "ops/qmm/layouts.h"

#include <string.h>

/* What reads and what writes a layout, side by side. `bytes` is one of ggml's blocks, and b the number in it of the 32
 * inputs that are wanted. */

/* ------------------------------------------------------------------------------------------------ parts of layouts */

/* 16 bytes of nibbles: inputs 0..15 in the low ones, 16..31 in the high ones. */
static void read_nibbles(uint8_t *codes, const uint8_t *bytes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = bytes[i] & 0x0f;
    codes[i + 16] = bytes[i] >> 4;
  }
}

static void write_nibbles(uint8_t *bytes, const uint8_t *codes) {
  for (int i = 0; i < 16; ++i) {
    bytes[i] = (uint8_t)((codes[i] & 0x0f) | codes[i + 16] << 4);
  }
}

static void read_fifth_bits(uint8_t *codes, const uint8_t *bytes) {
  const uint32_t bits = df2_qmm_read_u32(bytes);
  for (int i = 0; i < 32; ++i) {
    codes[i] |= (uint8_t)((bits >> i & 1u) << 4);
  }
}

static void write_fifth_bits(uint8_t *bytes, const uint8_t *codes) {
  for (int i = 0; i < 32; ++i) {
    bytes[i / 8] |= (uint8_t)((codes[i] >> 4) << i % 8);
  }
}

static uint16_t negate_f16(uint16_t value) {
  return value ^ 0x8000u;
}

/* Scales of 6 bits that 32 is taken off. */
static uint8_t less_32(int value) {
  return (uint8_t)(int8_t)(value - 32);
}

static int plus_32(uint8_t factor) {
  return (factor + 32) & 63;
}

/* ----------------------------------------------------------------------------------------------- blocks of 32 weights
 * In this order, what there is of it: f16 scale or e8m0 exponent; f16 minimum; 4 bytes of fifth bits; 16 bytes of
 * nibbles, or 32 of codes. For codes of 4, 5 and 8 bits. */

static void read_plain(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b) {
  (void)b;
  bytes += format->scale_at;
  if (format->scales == DF2_SCALES_E8M0) {
    out->factor[0] = *bytes++;
  } else {
    out->scale = df2_qmm_read_u16(bytes);
    bytes += 2;
  }
  if (df2_qmm_has_minima(format->scales)) {
    out->minimum = df2_qmm_read_u16(bytes);
    bytes += 2;
  }
  if (format->codes == DF2_CODES_8) {
    memcpy(out->codes, bytes, 32);
  } else if (format->codes == DF2_CODES_5) {
    read_nibbles(out->codes, bytes + 4);
    read_fifth_bits(out->codes, bytes);
  } else {
    read_nibbles(out->codes, bytes);
  }
}

static void write_plain(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b) {
  (void)b;
  bytes += format->scale_at;
  if (format->scales == DF2_SCALES_E8M0) {
    *bytes++ = block->factor[0];
  } else {
    df2_qmm_write_u16(bytes, block->scale);
    bytes += 2;
  }
  if (df2_qmm_has_minima(format->scales)) {
    df2_qmm_write_u16(bytes, block->minimum);
    bytes += 2;
  }
  if (format->codes == DF2_CODES_8) {
    memcpy(bytes, block->codes, 32);
  } else if (format->codes == DF2_CODES_5) {
    write_fifth_bits(bytes, block->codes);
    write_nibbles(bytes + 4, block->codes);
  } else {
    write_nibbles(bytes, block->codes);
  }
}

/* -------------------------------------------------------------------------------------------------------- q4_K, q5_K
 * f16 d, f16 dmin, 12 bytes of factors, 128 of nibbles; q5_K has 32 bytes of fifth bits before the nibbles. */

/* The 6-bit scale and minimum of block b (0..7) out of the 12 bytes. */
static void read_k_factors(df2_qmm_block *out, const uint8_t *bytes, int b) {
  if (b < 4) {
    out->factor[0] = bytes[b] & 63;
    out->factor_minimum = bytes[b + 4] & 63;
  } else {
    out->factor[0] = (uint8_t)((bytes[b + 4] & 0x0f) | (bytes[b - 4] >> 6) << 4);
    out->factor_minimum = (uint8_t)((bytes[b + 4] >> 4) | (bytes[b] >> 6) << 4);
  }
}

static void write_k_factors(uint8_t *bytes, const df2_qmm_block *block, int b) {
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

static void read_q45_k(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b) {
  const bool has_fifth_bits = format->codes == DF2_CODES_5;
  out->scale = df2_qmm_read_u16(bytes + format->scale_at);
  out->minimum = negate_f16(df2_qmm_read_u16(bytes + format->scale_at + 2));
  read_k_factors(out, bytes + 4, b);
  const uint8_t *nibbles = bytes + (has_fifth_bits ? 48 : 16) + b / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    out->codes[i] = b % 2 == 0 ? nibbles[i] & 0x0f : nibbles[i] >> 4;
    if (has_fifth_bits) {
      out->codes[i] |= (uint8_t)((bytes[16 + i] >> b & 1) << 4);
    }
  }
}

static void write_q45_k(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b) {
  const bool has_fifth_bits = format->codes == DF2_CODES_5;
  df2_qmm_write_u16(bytes + format->scale_at, block->scale);
  df2_qmm_write_u16(bytes + format->scale_at + 2, negate_f16(block->minimum));
  write_k_factors(bytes + 4, block, b);
  uint8_t *nibbles = bytes + (has_fifth_bits ? 48 : 16) + b / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    nibbles[i] |= (uint8_t)((block->codes[i] & 0x0f) << b % 2 * 4);
    if (has_fifth_bits) {
      bytes[16 + i] |= (uint8_t)(block->codes[i] >> 4 << b);
    }
  }
}

/* --------------------------------------------------------------------------------------------------------------- q6_K
 * 128 bytes of lower nibbles, 64 of upper bit pairs, 16 s8 scales, f16 d. */

static void read_q6_k(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b) {
  const int quarter = b % 4;
  const uint8_t *lower = bytes + b / 4 * 64 + quarter % 2 * 32;
  const uint8_t *upper = bytes + 128 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? lower[i] & 0x0f : lower[i] >> 4;
    out->codes[i] = (uint8_t)(nibble | (upper[i] >> 2 * quarter & 3) << 4);
  }
  out->factor[0] = bytes[192 + 2 * b];
  out->factor[1] = bytes[192 + 2 * b + 1];
  out->scale = df2_qmm_read_u16(bytes + format->scale_at);
}

static void write_q6_k(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b) {
  const int quarter = b % 4;
  uint8_t *lower = bytes + b / 4 * 64 + quarter % 2 * 32;
  uint8_t *upper = bytes + 128 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    lower[i] |= (uint8_t)((block->codes[i] & 0x0f) << (quarter < 2 ? 0 : 4));
    upper[i] |= (uint8_t)(block->codes[i] >> 4 << 2 * quarter);
  }
  bytes[192 + 2 * b] = block->factor[0];
  bytes[192 + 2 * b + 1] = block->factor[1];
  df2_qmm_write_u16(bytes + format->scale_at, block->scale);
}

/* --------------------------------------------------------------------------------------------------------------- q3_K
 * 32 bytes of third bits, 64 of bit pairs, 12 of factors, f16 d. A weight is its code minus 4. The 16 factors: 8 bytes
 * with their lower nibbles, 4 with the upper bit pairs. */

static uint8_t read_q3_k_factor(const uint8_t *bytes, int index) {
  const int lower = index < 8 ? bytes[index] & 0x0f : bytes[index - 8] >> 4;
  const int upper = bytes[8 + index % 4] >> (index / 4 * 2) & 3;
  return less_32(lower | upper << 4);
}

static void write_q3_k_factor(uint8_t *bytes, uint8_t factor, int index) {
  const int value = plus_32(factor);
  bytes[index % 8] |= (uint8_t)((value & 0x0f) << index / 8 * 4);
  bytes[8 + index % 4] |= (uint8_t)(value >> 4 << index / 4 * 2);
}

static void read_q3_k(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b) {
  const uint8_t *pairs = bytes + 32 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    out->codes[i] = (uint8_t)((pairs[i] >> b % 4 * 2 & 3) | (bytes[i] >> b & 1) << 2);
  }
  out->factor[0] = read_q3_k_factor(bytes + 96, 2 * b);
  out->factor[1] = read_q3_k_factor(bytes + 96, 2 * b + 1);
  out->scale = df2_qmm_read_u16(bytes + format->scale_at);
}

static void write_q3_k(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b) {
  uint8_t *pairs = bytes + 32 + b / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    bytes[i] |= (uint8_t)(block->codes[i] >> 2 << b);
    pairs[i] |= (uint8_t)((block->codes[i] & 3) << b % 4 * 2);
  }
  write_q3_k_factor(bytes + 96, block->factor[0], 2 * b);
  write_q3_k_factor(bytes + 96, block->factor[1], 2 * b + 1);
  df2_qmm_write_u16(bytes + format->scale_at, block->scale);
}

/* ------------------------------------------------------------------------------------------------------------- iq4_xs
 * f16 d, u16 upper bit pairs of the factors, 4 bytes of their lower nibbles, 128 of nibbles. */

static void read_iq4_xs(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b) {
  const int lower = bytes[4 + b / 2] >> b % 2 * 4 & 0x0f;
  const int upper = df2_qmm_read_u16(bytes + 2) >> 2 * b & 3;
  out->scale = df2_qmm_read_u16(bytes + format->scale_at);
  out->factor[0] = less_32(lower | upper << 4);
  read_nibbles(out->codes, bytes + 8 + b * 16);
}

static void write_iq4_xs(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b) {
  const int value = plus_32(block->factor[0]);
  df2_qmm_write_u16(bytes + format->scale_at, block->scale);
  bytes[2 + b / 4] |= (uint8_t)(value >> 4 << b % 4 * 2);
  bytes[4 + b / 2] |= (uint8_t)((value & 0x0f) << b % 2 * 4);
  write_nibbles(bytes + 8 + b * 16, block->codes);
}

/* ---------------------------------------------------------------------------------------------------------- the table
 */

/* Float types have no blocks. */
#define read_values NULL
#define write_values NULL

static const struct {
  void (*read)(df2_qmm_block *out, const df2_qmm_format *format, const uint8_t *bytes, int b);
  void (*write)(uint8_t *bytes, const df2_qmm_format *format, const df2_qmm_block *block, int b);
} layouts[DF2_QMM_N_TYPES] = {
#define DF2_QMM_FORMAT(type, name, codes, scales, bias, n_weights, n_bytes, layout, scale_at) \
  [DF2_QMM_##type] = {read_##layout, write_##layout},
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT
};

void df2_qmm_read_block(df2_qmm_block *out, df2_qmm_type type, const uint8_t *row, int64_t index) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t per_granule = format->granularity / DF2_QMM_BLOCK;
  const uint8_t *bytes = row + index / per_granule * format->granule_bytes;
  layouts[type].read(out, format, bytes, (int)(index % per_granule));
}

void df2_qmm_write_block(uint8_t *row, df2_qmm_type type, int64_t index, const df2_qmm_block *block) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t per_granule = format->granularity / DF2_QMM_BLOCK;
  uint8_t *bytes = row + index / per_granule * format->granule_bytes;
  layouts[type].write(bytes, format, block, (int)(index % per_granule));
}
