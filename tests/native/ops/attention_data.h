/* Seeded caches, queries and masks for test_attention.c. */
#ifndef DF2_TESTS_OPS_ATTENTION_DATA_H
#define DF2_TESTS_OPS_ATTENTION_DATA_H

#include "harness.h"
#include "ops/attention/attention.h"

#define ATTENTION_MAX_ROWS 64
#define ATTENTION_MASKED 0xfc00 /* minus infinity */

typedef enum attention_mask {
  ATTENTION_MASK_NONE,
  ATTENTION_MASK_CAUSAL,   /* with few keys, the first queries see none */
  ATTENTION_MASK_WINDOW,   /* the last 100 keys before each query */
  ATTENTION_MASK_TILES,    /* a third of the tiles; the first query sees nothing */
  ATTENTION_MASK_RANDOM,   /* two thirds of the keys, with values of either sign */
  ATTENTION_MASK_DISTANCE, /* causal, falling with the distance: ALiBi */
  ATTENTION_N_MASKS
} attention_mask;

typedef struct attention_shape {
  df2_attention_type key_type, value_type;
  int32_t key_size, value_size;
  int32_t n_rows;
  int64_t n_keys;
  attention_mask mask;
  float softcap;
  bool has_sinks;
} attention_shape;

/* One K/V head of a cache with two, and the rows that attend to it. Every buffer ends with the last byte it needs. */
typedef struct attention_problem {
  attention_shape shape;
  int32_t n_heads; /* rows of a query, which share its mask */
  df2_attention_params params;
  df2_attention_cache keys, values;
  df2_attention_row rows[ATTENTION_MAX_ROWS];
  float sink_values[ATTENTION_MAX_ROWS];
  const float *sinks[ATTENTION_MAX_ROWS]; /* null: none */
  float key_magnitude;
  test_buffer key_memory, value_memory, query_memory, mask_memory;
} attention_problem;

/* If sizes are 576 and 512 and the types equal, values are the first part of the keys, as in MLA. */
void attention_problem_new(attention_problem *made, const attention_shape *shape, test_random *random);
void attention_problem_free(attention_problem *problem);

const char *attention_type_name(df2_attention_type type);

/* The mask of a row and of those that share it; null without masks. */
uint16_t *attention_mask_of(const attention_problem *problem, int32_t row);
float *attention_query_of(const attention_problem *problem, int32_t row);

/* Makes a vector of a cache all zeros but for its first element: a power of two, which every type has but iq4_nl; of
 * that, the first one is larger, and those of its block are not quite zeros. */
void attention_set_first(const df2_attention_cache *cache, int64_t key, float value);

/* A value as a cache holds it. Not the kernels' code. */
double attention_element(const df2_attention_cache *cache, int64_t key, int32_t i);

/* The longest query times the longest key times the scale: no score is larger. */
double attention_largest_score(const attention_problem *problem);

#endif
