#include "qmm_data.h"

#include <math.h>
#include <string.h>

#include "ops/qmm/formats.h"

enum { ZEROS, DENORMALS, HUGE_VALUES, WITH_NAN, WITH_INFINITY, WITH_BOTH, TIES, NEGLIGIBLE, NEGATIVE_ZEROS, EXTREMES };

static void write_u16(uint8_t *bytes, uint32_t value) {
  bytes[0] = (uint8_t)value;
  bytes[1] = (uint8_t)(value >> 8);
}

/* A float of the given number of exponent and fraction bits, between 2^-n_octaves and 2. */
static uint32_t ordinary(test_random *random, int n_exponent_bits, int n_fraction_bits, uint32_t n_octaves) {
  const uint32_t one = (1u << (n_exponent_bits - 1)) - 1;
  const uint32_t exponent = one - test_random_below(random, n_octaves + 1);
  const uint32_t sign = test_random_below(random, 2);
  const uint32_t fraction = test_random_below(random, 1u << n_fraction_bits);
  return sign << (n_exponent_bits + n_fraction_bits) | exponent << n_fraction_bits | fraction;
}

/* Zero, a denormal, the largest finite value, infinity or NaN, of either sign. */
static uint32_t special(test_random *random, int n_exponent_bits, int n_fraction_bits) {
  const uint32_t infinity = ((1u << n_exponent_bits) - 1) << n_fraction_bits;
  const uint32_t sign = test_random_below(random, 2) << (n_exponent_bits + n_fraction_bits);
  switch (test_random_below(random, 8)) {
    case 0:
      return sign | infinity;
    case 1:
      return sign | infinity | 1u << (n_fraction_bits - 1);
    case 2:
      return sign | (infinity - 1);
    case 3:
    case 4:
      return sign;
    default:
      return sign | test_random_below(random, 1u << n_fraction_bits);
  }
}

static uint32_t scale_bits(test_random *random, int n_exponent_bits, int n_fraction_bits, bool is_special) {
  /* one special value per few hundred, or all outputs would be NaN */
  if (is_special && test_random_below(random, 256) == 0) {
    return special(random, n_exponent_bits, n_fraction_bits);
  }
  return ordinary(random, n_exponent_bits, n_fraction_bits, 9);
}

/* Replaces the scales of one of ggml's blocks, or a float. */
static void write_scales(test_random *random, uint8_t *block, const df2_qmm_format *format, bool is_special) {
  uint8_t *scale = block + format->scale_at;
  if (format->codes == DF2_CODES_F32) {
    const uint32_t bits = scale_bits(random, 8, 23, is_special);
    write_u16(block, bits);
    write_u16(block + 2, bits >> 16);
  } else if (format->codes == DF2_CODES_BF16) {
    write_u16(block, scale_bits(random, 8, 7, is_special));
  } else if (format->scales == DF2_SCALES_E8M0) {
    *scale = (uint8_t)(is_special && test_random_below(random, 64) == 0 ? 255 * test_random_below(random, 2)
                                                                        : 118 + test_random_below(random, 12));
  } else {
    write_u16(scale, scale_bits(random, 5, 10, is_special));
    if (df2_qmm_has_minima(format->scales)) {
      write_u16(scale + 2, scale_bits(random, 5, 10, is_special));
    }
  }
}

void qmm_random_weights(test_random *random, uint8_t *weights, df2_qmm_type type, int64_t n_out, int64_t n_in,
                        bool is_special) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const size_t n_bytes = (size_t)n_out * df2_qmm_row_bytes(type, n_in);
  /* of floats, each is a block */
  const size_t n_per_block = df2_qmm_is_float(format->codes) ? (size_t)format->granularity : 1;
  const size_t block_bytes = (size_t)format->granule_bytes / n_per_block;
  test_random_bytes(random, weights, n_bytes);
  for (uint8_t *block = weights; block < weights + n_bytes; block += block_bytes) {
    if (is_special && test_random_below(random, 4) == 0) {
      /* the largest and smallest codes, all at once: sums come as close to overflow as they can */
      static const uint8_t extremes[4] = {0x00, 0xff, 0x80, 0x7f};
      memset(block, extremes[test_random_below(random, 4)], block_bytes);
    }
    write_scales(random, block, format, is_special);
  }
}

bool qmm_row_is_invalid(int32_t r) {
  return r == WITH_NAN || r == WITH_INFINITY || r == WITH_BOTH;
}

bool qmm_row_is_ordinary(int32_t r) {
  return r > EXTREMES;
}

/* Spoils value i of a row that is ordinary so far. */
static float special_value(test_random *random, float value, int64_t i, int32_t r) {
  switch (r) {
    case ZEROS:
      return 0.0f;
    case NEGATIVE_ZEROS:
      return -0.0f;
    case DENORMALS:
      return value * 0x1p-130f;
    case HUGE_VALUES:
      return value * 0x1p123f;
    case WITH_NAN:
      return i == 17 ? NAN : value;
    case WITH_INFINITY:
      return i == 5 ? -INFINITY : value;
    case WITH_BOTH:
      return i == 0 ? INFINITY : i == 31 ? NAN : value;
    case TIES:
      return i % 32 == 3 ? 127.0f : (float)test_random_below(random, 254) - 126.5f;
    case EXTREMES:
      return i / 32 % 2 == 0 || test_random_below(random, 2) == 0 ? 1.0f : -1.0f;
    case NEGLIGIBLE:
      /* block by block, the largest is 2^-100, one step below, or one above */
      return i % 32 != 9 ? value * 0x1p-101f : test_float_of_bits(0x0d800000u + (uint32_t)(i / 32 % 3) - 1);
    default:
      return value;
  }
}

void qmm_random_row(test_random *random, float *row, int64_t n_in, int32_t r, bool is_special) {
  /* rows differ in magnitude, and so do their blocks */
  for (int64_t i = 0; i < n_in; ++i) {
    const float magnitude = (float)(1 << (r % 4 + i / 32 % 3));
    row[i] = test_random_float(random) * magnitude;
    if (is_special) {
      row[i] = special_value(random, row[i], i, r);
    }
  }
}
