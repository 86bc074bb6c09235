#include "walk_data.h"

#include <math.h>
#include <string.h>

static void read_row(float *out, const void *codebook, int64_t row) {
  walk_codebook *read = (walk_codebook *)(uintptr_t)codebook; /* counts */
  if (row < 0 || row >= WALK_N_TOKENS || (uintptr_t)out % 64 != 0) {
    ++read->n_wrong_reads;
    return;
  }
  memcpy(out, read->rows + row * read->rank, (size_t)read->rank * sizeof(float));
}

static float draw(walk_values values, uint32_t one_in, test_random *random) {
  static const float special[] = {INFINITY, -INFINITY, NAN};
  if (values == WALK_COARSE) {
    return (float)test_random_below(random, 3) - 1.0f;
  }
  if (values == WALK_NONFINITE && test_random_below(random, one_in) == 0) {
    return special[test_random_below(random, 3)];
  }
  return test_random_float(random);
}

static test_buffer floats_new(int64_t n, walk_values values, uint32_t one_in, test_random *random) {
  test_buffer made = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    ((float *)(void *)made.data)[i] = draw(values, one_in, random);
  }
  return made;
}

static void codebook_new(walk_codebook *made, const walk_shape *shape, test_random *random) {
  const uint32_t one_in = 20 * (uint32_t)shape->rank + 1;
  made->memory = floats_new(WALK_N_TOKENS * shape->rank, shape->values, one_in, random);
  made->rows = (float *)(void *)made->memory.data;
  made->rank = shape->rank;
  made->n_wrong_reads = 0;
}

/* Different ids at each position. */
static void fill_ids(int32_t *ids, const walk_shape *shape, test_random *random) {
  for (int64_t i = 0; i < shape->n_positions; ++i) {
    const uint32_t first = test_random_below(random, WALK_N_TOKENS);
    const uint32_t step = 1 + test_random_below(random, WALK_N_TOKENS - 1);
    for (int64_t c = 0; c < shape->k; ++c) {
      ids[i * shape->k + c] = (int32_t)((first + (uint32_t)c * step) % WALK_N_TOKENS);
    }
  }
}

/* Rows lie apart; what is between them would show in sums. */
static void gate_new(walk_problem *made, test_random *random) {
  const walk_shape *shape = &made->shape;
  const int64_t stride = shape->rank + 3;
  const int64_t n = shape->n_positions > 0 ? (shape->n_positions - 1) * stride + shape->rank : 0;
  made->gate = floats_new(n, shape->values, 20 * (uint32_t)shape->rank + 1, random);
  float *gate = (float *)(void *)made->gate.data;
  for (int64_t i = 0; i < n; ++i) {
    gate[i] = i % stride < shape->rank ? gate[i] : NAN;
  }
  made->args.gate = gate;
  made->args.gate_stride = stride;
}

static void uniforms_new(walk_problem *made, test_random *random) {
  const int64_t n = made->shape.n_positions;
  made->uniforms = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  float *uniforms = (float *)(void *)made->uniforms.data;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t kind = test_random_below(random, 10);
    uniforms[i] = kind == 0 ? 0.0f : kind == 1 ? 0x1.fffffep-1f : 0.5f + 0.5f * test_random_float(random);
  }
  made->args.uniforms = made->shape.temperature > 0.0f ? uniforms : NULL;
}

void walk_problem_new(walk_problem *made, const walk_shape *shape, test_random *random) {
  const int64_t n_candidates = shape->n_positions * shape->k;
  *made = (walk_problem){.shape = *shape};
  made->ids = test_buffer_new((size_t)n_candidates * sizeof(int32_t), sizeof(int32_t));
  fill_ids((int32_t *)(void *)made->ids.data, shape, random);
  made->logits = floats_new(n_candidates, shape->values, 20, random);
  float *logits = (float *)(void *)made->logits.data;
  for (int64_t i = 0; i < n_candidates; ++i) {
    logits[i] *= shape->values == WALK_COARSE ? 1.0f : 4.0f;
  }
  codebook_new(&made->predecessor, shape, random);
  codebook_new(&made->successor, shape, random);
  gate_new(made, random);
  uniforms_new(made, random);
  df2_select_walk *args = &made->args;
  args->n_positions = shape->n_positions;
  args->k = shape->k;
  args->rank = shape->rank;
  args->ids = (const int32_t *)(const void *)made->ids.data;
  args->logits = logits;
  args->read_row = read_row;
  args->predecessor = &made->predecessor;
  args->successor = &made->successor;
  args->anchor = (int32_t)test_random_below(random, WALK_N_TOKENS);
  args->temperature = shape->temperature;
}

void walk_problem_free(walk_problem *problem) {
  test_buffer_free(&problem->ids);
  test_buffer_free(&problem->logits);
  test_buffer_free(&problem->gate);
  test_buffer_free(&problem->uniforms);
  test_buffer_free(&problem->predecessor.memory);
  test_buffer_free(&problem->successor.memory);
}

uint64_t walk_problem_checksum(const walk_problem *problem) {
  const test_buffer *inputs[] = {&problem->ids,
                                 &problem->logits,
                                 &problem->gate,
                                 &problem->uniforms,
                                 &problem->predecessor.memory,
                                 &problem->successor.memory};
  uint64_t checksum = 0;
  for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; ++i) {
    checksum = test_checksum(checksum, (const float *)(const void *)inputs[i]->data,
                             (int64_t)(inputs[i]->size / sizeof(float)));
  }
  return checksum;
}

double walk_score(const walk_problem *problem, int64_t position, int64_t candidate, int32_t previous,
                  double *magnitude) {
  const df2_select_walk *args = &problem->args;
  const int64_t at = position * args->k + candidate;
  const float *gate = args->gate + position * args->gate_stride;
  const float *before = problem->predecessor.rows + previous * args->rank;
  const float *after = problem->successor.rows + args->ids[at] * args->rank;
  double score = (double)args->logits[at];
  *magnitude = fabs(score);
  for (int64_t r = 0; r < args->rank; ++r) {
    const double product = (double)before[r] * (double)gate[r] * (double)after[r];
    score += product;
    *magnitude += fabs(product);
  }
  return isnan(score) ? -INFINITY : score;
}

static int64_t first_largest(const float *scores, int64_t k) {
  int64_t best = 0;
  for (int64_t c = 1; c < k; ++c) {
    best = scores[c] > scores[best] ? c : best;
  }
  return best;
}

int64_t walk_choice(const walk_problem *problem, int64_t position, const float *scores, const float *q) {
  const df2_select_walk *args = &problem->args;
  if (args->temperature == 0.0f) {
    return first_largest(scores, args->k);
  }
  float cumulative = 0.0f;
  for (int64_t c = 0; c < args->k; ++c) {
    cumulative += q[c];
    if (cumulative > args->uniforms[position]) {
      return c;
    }
  }
  int64_t last = args->k - 1;
  while (last > 0 && !(q[last] > 0.0f)) {
    --last;
  }
  return last;
}
