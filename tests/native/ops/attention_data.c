#include "attention_data.h"

#include <math.h>
#include <string.h>

#define WINDOW 100

const char *attention_type_name(df2_attention_type type) {
  static const char *const names[] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
  return names[type];
}

/* How a type with blocks of 32 lays them out. */
typedef struct layout {
  size_t n_bytes;
  int minimum_at, fifth_bits_at, codes_at; /* after the scale; 0: there are none */
  int offset;                              /* subtracted from codes */
} layout;

static const layout layouts[DF2_ATTENTION_N_TYPES] = {
    [DF2_ATTENTION_Q8_0] = {34, 0, 0, 2, 0}, [DF2_ATTENTION_Q4_0] = {18, 0, 0, 2, 8},
    [DF2_ATTENTION_Q4_1] = {20, 2, 0, 4, 0}, [DF2_ATTENTION_Q5_0] = {22, 0, 2, 6, 16},
    [DF2_ATTENTION_Q5_1] = {24, 2, 4, 8, 0}, [DF2_ATTENTION_IQ4_NL] = {18, 0, 0, 2, 0}};

static size_t vector_bytes(df2_attention_type type, int32_t size) {
  const size_t block_bytes = layouts[type].n_bytes;
  return block_bytes != 0 ? (size_t)size / 32 * block_bytes : (size_t)size * (type == DF2_ATTENTION_F32 ? 4 : 2);
}

/* Rounds towards zero. */
static uint16_t half_of(float value) {
  const uint32_t bits = test_float_bits(value);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
  const int32_t exponent = (int32_t)(bits >> 23 & 255) - 112;
  const uint32_t fraction = bits & 0x7fffff;
  if (exponent >= 31) {
    return sign | 0x7c00;
  }
  if (exponent <= 0) {
    return exponent < -10 ? sign : (uint16_t)(sign | (fraction | 0x800000) >> (14 - exponent));
  }
  return (uint16_t)(sign | exponent << 10 | fraction >> 13);
}

static double value_of_half(uint16_t half) {
  const int32_t exponent = half >> 10 & 31;
  const int32_t fraction = half & 0x3ff;
  const double magnitude = exponent == 0    ? ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : ldexp(1024 + fraction, exponent - 25);
  return half >> 15 != 0 ? -magnitude : magnitude;
}

static void put16(uint8_t *at, uint16_t value) {
  at[0] = (uint8_t)value;
  at[1] = (uint8_t)(value >> 8);
}

static uint16_t get16(const uint8_t *at) {
  return (uint16_t)(at[0] | at[1] << 8);
}

static void set_element(const df2_attention_cache *cache, uint8_t *vector, int32_t i, float value) {
  if (cache->type == DF2_ATTENTION_F32) {
    memcpy(vector + 4 * i, &value, sizeof value);
  } else {
    put16(vector + 2 * i, cache->type == DF2_ATTENTION_F16 ? half_of(value) : (uint16_t)(test_float_bits(value) >> 16));
  }
}

static uint8_t *vector_at(const df2_attention_cache *cache, int64_t key) {
  return (uint8_t *)(uintptr_t)cache->data + (size_t)key * cache->stride_bytes;
}

static double block_element(df2_attention_type type, const uint8_t *block, int32_t i) {
  static const int8_t table[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const layout *of = &layouts[type];
  const double scale = value_of_half(get16(block));
  if (type == DF2_ATTENTION_Q8_0) {
    return (double)(int8_t)block[2 + i] * scale;
  }
  const uint8_t byte = block[of->codes_at + i % 16];
  int32_t code = i < 16 ? byte & 15 : byte >> 4;
  if (of->fifth_bits_at != 0) {
    code += (block[of->fifth_bits_at + i / 8] >> i % 8 & 1) * 16;
  }
  code = type == DF2_ATTENTION_IQ4_NL ? table[code] : code - of->offset;
  return (double)code * scale + (of->minimum_at != 0 ? value_of_half(get16(block + of->minimum_at)) : 0.0);
}

double attention_element(const df2_attention_cache *cache, int64_t key, int32_t i) {
  const uint8_t *vector = vector_at(cache, key);
  if (layouts[cache->type].n_bytes != 0) {
    return block_element(cache->type, vector + (size_t)(i / 32) * layouts[cache->type].n_bytes, i % 32);
  }
  float value;
  switch (cache->type) {
    case DF2_ATTENTION_F16:
      return value_of_half(get16(vector + 2 * i));
    case DF2_ATTENTION_BF16:
      return (double)test_float_of_bits((uint32_t)get16(vector + 2 * i) << 16);
    default:
      memcpy(&value, vector + 4 * i, sizeof value);
      return (double)value;
  }
}

/* The first block of a vector whose other blocks are zeros. */
static void set_block(df2_attention_type type, uint8_t *block, float value) {
  const layout *of = &layouts[type];
  if (type == DF2_ATTENTION_Q8_0) {
    put16(block, half_of(value / 64.0f));
    block[2] = 64;
    return;
  }
  if (type == DF2_ATTENTION_IQ4_NL) {
    put16(block, half_of(value / 64.0f));
    memset(block + of->codes_at, 0x88, 16);
    block[of->codes_at] = 0x8f;
    return;
  }
  const int unit = of->fifth_bits_at != 0 ? 16 : 8; /* the upper bit of a code; of types with an offset, what is 0 */
  put16(block, half_of((of->offset != 0 ? -value : value) / (float)unit));
  if (of->fifth_bits_at != 0) {
    memset(block + of->fifth_bits_at, of->offset != 0 ? 0xff : 0, 4);
    block[of->fifth_bits_at] ^= 1;
  } else {
    memset(block + of->codes_at, of->offset != 0 ? 0x88 : 0, 16);
    block[of->codes_at] ^= 0x08;
  }
}

void attention_set_first(const df2_attention_cache *cache, int64_t key, float value) {
  uint8_t *vector = vector_at(cache, key);
  memset(vector, 0, vector_bytes(cache->type, cache->size));
  if (layouts[cache->type].n_bytes != 0) {
    set_block(cache->type, vector, value);
  } else {
    set_element(cache, vector, 0, value);
  }
}

/* Mostly ordinary values; some zeros, and some so small that f16 has them as denormals. */
static float random_element(test_random *random, float magnitude) {
  const uint32_t kind = test_random_below(random, 16);
  const float value = test_random_float(random) * magnitude;
  return kind == 0 ? 0.0f : kind == 1 ? value * 0x1p-18f : value;
}

/* All codes occur, and scales of either sign; about as large as the other types' values. */
static void random_blocks(test_random *random, df2_attention_type type, uint8_t *vector, int32_t size,
                          float magnitude) {
  const layout *of = &layouts[type];
  const bool has_bytes = type == DF2_ATTENTION_Q8_0 || type == DF2_ATTENTION_IQ4_NL;
  const float largest = has_bytes ? 64.0f : of->fifth_bits_at != 0 ? 16.0f : 8.0f;
  for (int32_t block = 0; block < size / 32; ++block, vector += of->n_bytes) {
    test_random_bytes(random, vector, of->n_bytes);
    put16(vector, half_of(random_element(random, magnitude) / largest));
    if (of->minimum_at != 0) {
      put16(vector + of->minimum_at, half_of(random_element(random, magnitude)));
    }
  }
}

static void fill_vectors(test_random *random, const df2_attention_cache *cache, uint8_t *memory, int64_t n_vectors,
                         float magnitude) {
  const size_t n_bytes = vector_bytes(cache->type, cache->size);
  for (int64_t v = 0; v < n_vectors; ++v) {
    uint8_t *vector = memory + (size_t)v * n_bytes;
    if (layouts[cache->type].n_bytes != 0) {
      random_blocks(random, cache->type, vector, cache->size, magnitude);
      continue;
    }
    for (int32_t i = 0; i < cache->size; ++i) {
      set_element(cache, vector, i, random_element(random, magnitude));
    }
  }
}

/* The second of two heads, whose vectors lie side by side. Those of the first are NaNs, which show wherever they are
 * read, if only to be multiplied with zeros. */
static test_buffer make_cache(df2_attention_cache *made, test_random *random, df2_attention_type type, int32_t size,
                              int64_t n_keys, float magnitude) {
  const size_t n_bytes = vector_bytes(type, size);
  test_buffer memory = test_buffer_new((size_t)n_keys * 2 * n_bytes, type == DF2_ATTENTION_F32 ? 4 : 2);
  *made = (df2_attention_cache){type, size, memory.data + n_bytes, 2 * n_bytes};
  fill_vectors(random, made, memory.data, 2 * n_keys, magnitude);
  for (int64_t key = 0; key < n_keys; ++key) {
    memset(memory.data + (size_t)key * 2 * n_bytes, 0xff, n_bytes);
  }
  return memory;
}

static uint16_t mask_value(attention_mask mask, test_random *random, int64_t position, int64_t key) {
  const bool is_past = key <= position;
  switch (mask) {
    case ATTENTION_MASK_CAUSAL:
      return is_past ? 0 : ATTENTION_MASKED;
    case ATTENTION_MASK_WINDOW:
      return is_past && key > position - WINDOW ? 0 : ATTENTION_MASKED;
    case ATTENTION_MASK_DISTANCE:
      return is_past ? half_of(-(float)(position - key)) : ATTENTION_MASKED;
    default:
      return test_random_below(random, 3) == 0 ? ATTENTION_MASKED : half_of(4.0f * test_random_float(random));
  }
}

static void fill_mask(const attention_problem *p, test_random *random, uint16_t *mask, int32_t query,
                      int32_t n_queries) {
  const attention_shape *s = &p->shape;
  for (int64_t key = 0; key < s->n_keys; ++key) {
    if (s->mask != ATTENTION_MASK_TILES) {
      mask[key] = mask_value(s->mask, random, s->n_keys - n_queries + query, key);
    } else if (key % DF2_ATTENTION_TILE == 0) {
      mask[key] = query != 0 && test_random_below(random, 3) == 0 ? 0 : ATTENTION_MASKED;
    } else {
      mask[key] = mask[key - 1];
    }
  }
}

static int64_t mask_stride(const attention_problem *p) {
  return p->shape.n_keys + 1; /* of no particular alignment */
}

uint16_t *attention_mask_of(const attention_problem *p, int32_t row) {
  if (p->shape.mask == ATTENTION_MASK_NONE) {
    return NULL;
  }
  return (uint16_t *)(void *)p->mask_memory.data + row / p->n_heads * mask_stride(p) + 1;
}

float *attention_query_of(const attention_problem *p, int32_t row) {
  return (float *)(void *)p->query_memory.data + row * (p->shape.key_size + 1) + 1;
}

static void make_rows(attention_problem *p, test_random *random) {
  const attention_shape *s = &p->shape;
  const int32_t n_queries = s->n_rows / p->n_heads;
  p->query_memory = test_buffer_new((size_t)(s->n_rows * (s->key_size + 1)) * sizeof(float), sizeof(float));
  if (s->mask != ATTENTION_MASK_NONE) {
    p->mask_memory = test_buffer_new((size_t)(n_queries * mask_stride(p)) * sizeof(uint16_t), sizeof(uint16_t));
  }
  for (int32_t query = 0; query < n_queries && s->mask != ATTENTION_MASK_NONE; ++query) {
    fill_mask(p, random, attention_mask_of(p, query * p->n_heads), query, n_queries);
  }
  for (int32_t r = 0; r < s->n_rows; ++r) {
    for (int32_t i = 0; i < s->key_size; ++i) {
      attention_query_of(p, r)[i] = test_random_float(random);
    }
    const float slope = s->mask >= ATTENTION_MASK_RANDOM ? ldexpf(1.0f, -(r % p->n_heads)) : 1.0f;
    p->rows[r] = (df2_attention_row){attention_query_of(p, r), attention_mask_of(p, r), slope};
    /* around the scores, far below and far above them */
    static const float offsets[] = {0.0f, -30.0f, 30.0f, -200.0f, 200.0f};
    p->sink_values[r] = test_random_float(random) + (r % 7 == 6 ? -INFINITY : offsets[r % 5]);
    p->sinks[r] = s->has_sinks ? &p->sink_values[r] : NULL;
  }
}

void attention_problem_new(attention_problem *p, const attention_shape *s, test_random *random) {
  *p = (attention_problem){.shape = *s};
  p->n_heads = s->n_rows % 3 == 0 ? 3 : s->n_rows % 2 == 0 ? 2 : 1;
  p->params = (df2_attention_params){1.0f / sqrtf((float)s->key_size), s->softcap};
  /* scores of about 0.3, of several, and of so many that most weights vanish */
  static const float magnitudes[] = {1.0f, 8.0f, 64.0f};
  p->key_magnitude = magnitudes[test_random_below(random, 3)];
  p->key_memory = make_cache(&p->keys, random, s->key_type, s->key_size, s->n_keys, p->key_magnitude);
  if (s->key_size == 576 && s->value_size == 512 && s->key_type == s->value_type) {
    p->values = p->keys;
    p->values.size = s->value_size;
  } else {
    p->value_memory = make_cache(&p->values, random, s->value_type, s->value_size, s->n_keys, 1.0f);
  }
  make_rows(p, random);
}

void attention_problem_free(attention_problem *p) {
  test_buffer *const memory[] = {&p->key_memory, &p->value_memory, &p->query_memory, &p->mask_memory};
  for (int i = 0; i < 4; ++i) {
    if (memory[i]->pages != NULL) {
      test_buffer_free(memory[i]);
    }
  }
}

double attention_largest_score(const attention_problem *p) {
  double query = 0.0, key = 0.0;
  for (int32_t r = 0; r < p->shape.n_rows; ++r) {
    double sum = 0.0;
    for (int32_t i = 0; i < p->shape.key_size; ++i) {
      sum += pow((double)attention_query_of(p, r)[i], 2.0);
    }
    query = fmax(query, sum);
  }
  for (int64_t k = 0; k < p->shape.n_keys; ++k) {
    double sum = 0.0;
    for (int32_t i = 0; i < p->shape.key_size; ++i) {
      sum += pow(attention_element(&p->keys, k, i), 2.0);
    }
    key = fmax(key, sum);
  }
  return sqrt(query * key) * (double)p->params.scale;
}
