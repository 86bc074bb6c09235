/* Seeded walks for test_select.c, and what defines their results. */
#ifndef DF2_TESTS_OPS_WALK_DATA_H
#define DF2_TESTS_OPS_WALK_DATA_H

#include "harness.h"
#include "ops/select/select.h"

typedef enum walk_values {
  WALK_ORDINARY,
  WALK_COARSE,    /* few different values, and exact sums: many equal scores */
  WALK_NONFINITE, /* NaNs and infinities among logits, gates and codebooks */
  WALK_N_VALUES
} walk_values;

typedef struct walk_shape {
  int64_t n_positions, k, rank;
  float temperature;
  walk_values values;
} walk_shape;

/* Codebooks notice if they are read where or how they must not be. */
typedef struct walk_codebook {
  float *rows; /* [WALK_N_TOKENS][rank] */
  int64_t rank;
  int64_t n_wrong_reads;
  test_buffer memory;
} walk_codebook;

#define WALK_N_TOKENS 257 /* a prime */

/* Every buffer ends with the last byte it needs; `args` has all inputs, but neither outputs nor workspace. */
typedef struct walk_problem {
  walk_shape shape;
  df2_select_walk args;
  walk_codebook predecessor, successor;
  test_buffer ids, logits, gate, uniforms;
} walk_problem;

void walk_problem_new(walk_problem *made, const walk_shape *shape, test_random *random);
void walk_problem_free(walk_problem *problem);
uint64_t walk_problem_checksum(const walk_problem *problem);

/* The score of a candidate in double precision, with NaN as minus infinity. *magnitude: of its summands together. */
double walk_score(const walk_problem *problem, int64_t position, int64_t candidate, int32_t previous,
                  double *magnitude);

/* The index that a walk must choose: from scores[k] and q[k] as it returns them. */
int64_t walk_choice(const walk_problem *problem, int64_t position, const float *scores, const float *q);

#endif
