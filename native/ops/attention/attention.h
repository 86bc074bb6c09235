/* Flash attention for a few query rows over a long cache.
 *
 * For one K/V head, its query rows (queries times the heads that share it) attend to keys 0 .. n_keys - 1:
 *
 *   s[c] = softcap(scale * <q, k[c]>) + slope * mask[c]        softcap(x) = cap * tanh(x / cap), or x if cap is 0
 *   o    = sum over c of exp(s[c]) v[c] / (sum over c of exp(s[c]) + exp(sink))
 *
 * Keys come in spans of DF2_ATTENTION_SPAN, counted from key 0. A span gives each row a partial result: the largest
 * score m, the sum l of exp(s - m) and the vector o of sums of exp(s - m) v; partial results are merged in the order of
 * their spans. Tiles of 64 keys that no row sees are left out. All sums have a fixed order (keys.inc, values.inc). A
 * row's result is therefore the same bits whichever rows it is computed with, on however many threads, and on every
 * instruction set.
 * Keys that are masked with minus infinity add nothing, so it does not depend on padding either; but their values are
 * multiplied, with zero, so caches must be finite throughout, as llama.cpp's are, and so must all scores. A query with
 * a NaN gets NaNs, if it sees a key.
 *
 * All sums are float32; keys and values are widened, queries are not narrowed. */
#ifndef DF2_OPS_ATTENTION_H
#define DF2_OPS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DF2_ATTENTION_SPAN 256
#define DF2_ATTENTION_TILE 64

typedef enum df2_attention_type {
  DF2_ATTENTION_F32,
  DF2_ATTENTION_F16,
  DF2_ATTENTION_BF16,
  /* ggml's blocks of 32 elements, an f16 scale d first. Elements of 4 bits lie as ggml lays them: the first 16 in the
   * lower halves of 16 bytes, the others in the upper ones. */
  DF2_ATTENTION_Q8_0,   /* d * signed byte */
  DF2_ATTENTION_Q4_0,   /* d * (4 bits - 8) */
  DF2_ATTENTION_Q4_1,   /* d * 4 bits + m, an f16 */
  DF2_ATTENTION_Q5_0,   /* d * (5 bits - 16); the fifth bits are 4 bytes before the others */
  DF2_ATTENTION_Q5_1,   /* d * 5 bits + m */
  DF2_ATTENTION_IQ4_NL, /* d * a table of 16 signed bytes */
  DF2_ATTENTION_N_TYPES
} df2_attention_type;

/* Keys or values of one head: vectors of `size` elements, stride_bytes apart. */
typedef struct df2_attention_cache {
  df2_attention_type type;
  int32_t size; /* 1 to DF2_ATTENTION_MAX_SIZE; of types with blocks, whole ones */
  const void *data;
  size_t stride_bytes;
} df2_attention_cache;

#define DF2_ATTENTION_MAX_SIZE 65536

#define DF2_ATTENTION_BLOCK 32 /* elements */

/* Bytes of a block; 0: the type has none. */
static inline size_t df2_attention_block_bytes(df2_attention_type type) {
  switch (type) {
    case DF2_ATTENTION_Q8_0:
      return 34;
    case DF2_ATTENTION_Q4_0:
    case DF2_ATTENTION_IQ4_NL:
      return 18;
    case DF2_ATTENTION_Q4_1:
      return 20;
    case DF2_ATTENTION_Q5_0:
      return 22;
    case DF2_ATTENTION_Q5_1:
      return 24;
    default:
      return 0;
  }
}

/* Bytes of a vector. */
static inline size_t df2_attention_vector_bytes(df2_attention_type type, int32_t size) {
  const size_t block_bytes = df2_attention_block_bytes(type);
  return block_bytes != 0 ? (size_t)size / DF2_ATTENTION_BLOCK * block_bytes
                          : (size_t)size * (type == DF2_ATTENTION_F32 ? 4 : 2);
}

/* One query row. */
typedef struct df2_attention_row {
  const float *query;   /* [key size] */
  const uint16_t *mask; /* f16 [n_keys], added; null: none */
  float slope;          /* of the mask (ALiBi); 1 without */
} df2_attention_row;

typedef struct df2_attention_params {
  float scale;
  float softcap; /* 0: none */
} df2_attention_params;

/* Floats of a partial result: m and 15 of padding; l as 16 sums, of keys 0, 16, ..., of keys 1, 17, ... and so on,
 * which only the end adds up; o, padded to a multiple of 16. */
static inline size_t df2_attention_partial_floats(int32_t value_size) {
  return 32 + ((size_t)value_size + 15) / 16 * 16;
}
#define DF2_ATTENTION_M 0
#define DF2_ATTENTION_L 16
#define DF2_ATTENTION_O 32

/* Bytes of scratch memory for a call with n_rows rows, aligned to 64 bytes. */
size_t df2_attention_workspace_bytes(int32_t n_rows, int32_t key_size, int32_t value_size);

typedef struct df2_attention_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* The partial results of n_rows rows over keys [first_key, last_key), which lie in one span and begin it.
   * partials: [n_rows][df2_attention_partial_floats], aligned to 64 bytes. */
  void (*attend)(float *partials, const df2_attention_params *params, const df2_attention_row *rows, int32_t n_rows,
                 const df2_attention_cache *keys, const df2_attention_cache *values, int64_t first_key,
                 int64_t last_key, void *workspace);

  /* Merges partial results: `total` (of earlier spans) and `next` of one row. */
  void (*merge)(float *total, const float *next, int32_t value_size);

  /* out[value_size] = o / (l + exp(sink - m)). sink: null for none. Rows without a key give zeros. */
  void (*finish)(float *out, float *total, const float *sink, int32_t value_size);
} df2_attention_kernel;

/* A partial result of no keys. */
void df2_attention_clear(float *partial, int32_t value_size);

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_attention_kernel *df2_attention_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_attention_kernel *df2_attention_kernel_at(int32_t index, uint32_t *required_features);

/* The definition in double precision, for tests: out[value_size] of one row over all keys. */
void df2_attention_ref_f64(double *out, const df2_attention_params *params, const df2_attention_row *row,
                           const df2_attention_cache *keys, const df2_attention_cache *values, int64_t n_keys,
                           const float *sink);

#ifdef __cplusplus
}
#endif

#endif
