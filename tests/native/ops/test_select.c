/* Every selection kernel that was compiled and that this CPU runs: the k best against a plain sort; walks against
 * ref.c, bit for bit, and ref.c against the definition in double precision; how often walks draw what; and what kernels
 * must leave alone. With --dispatch: prints which kernel would be chosen. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "isas.h"
#include "logits_data.h"
#include "ops/common/cpu.h"
#include "ops/select/select.h"
#include "walk_data.h"
#include "watch.h"

/* What memory holds before a kernel writes to it: NaNs, which would show if it read them. */
#define JUNK 0xff

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_select_kernel *kernel = df2_select_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

static const df2_select_kernel *kernel_at(int32_t index) {
  uint32_t features;
  return df2_select_kernel_at(index, &features);
}

static void watched(void (*body)(void *), void *context) {
  const char *broken = test_watched_call(body, context, has_sme);
  test_check(broken == NULL, "%s", broken);
}

/* ------------------------------------------------------------------------------------------------------- the k best */

typedef struct topk_call {
  const df2_select_kernel *kernel;
  int32_t *ids;
  float *values;
  const float *logits;
  int64_t n, k;
} topk_call;

static void topk(void *context) {
  const topk_call *c = context;
  c->kernel->topk(c->ids, c->values, c->logits, c->n, c->k);
}

static void check_topk(const df2_select_kernel *kernel, const float *logits, int64_t n, int64_t k,
                       const int32_t *order) {
  test_buffer ids = test_buffer_new((size_t)k * sizeof(int32_t), sizeof(int32_t));
  test_buffer values = test_buffer_new((size_t)k * sizeof(float), sizeof(float));
  topk_call c = {kernel, (int32_t *)(void *)ids.data, (float *)(void *)values.data, logits, n, k};
  watched(topk, &c);
  for (int64_t i = 0; i < k; ++i) {
    const float expected = isnan(logits[order[i]]) ? -INFINITY : logits[order[i]];
    const bool is_right = c.ids[i] == order[i] && test_float_bits(c.values[i]) == test_float_bits(expected);
    if (!test_check(is_right, "number %d is %d with %a, not %d with %a", (int)i, (int)c.ids[i], (double)c.values[i],
                    (int)order[i], (double)expected)) {
      break;
    }
  }
  test_check(test_buffer_guards_intact(&ids), "wrote outside the ids");
  test_check(test_buffer_guards_intact(&values), "wrote outside the values");
  test_buffer_free(&ids);
  test_buffer_free(&values);
}

/* Logits end where a page does, so sizes decide how they are aligned. */
static void check_topk_of(const test_options *options, int64_t n, logits_pattern pattern) {
  const int64_t counts[] = {1, 2, 5, 16, 17, 64, n / 2, n - 1, n};
  test_random random = test_random_for(options->seed, logits_pattern_name(pattern), (uint64_t)n);
  test_buffer memory = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  float *logits = (float *)(void *)memory.data;
  logits_fill(logits, n, pattern, &random);
  const uint64_t input = test_checksum(0, logits, n);
  int32_t *order = malloc((size_t)n * sizeof(int32_t));
  logits_sort(order, logits, n);
  for (int i = 0; i < 9; ++i) {
    const int64_t k = counts[i];
    if (k < 1 || k > n || (i > 5 && n > 1100)) {
      continue;
    }
    for (int32_t isa = 0; (isa = test_isa_next(options, isa_at, isa)) >= 0; ++isa) {
      test_case("%s: %s, n=%" PRId64 " k=%" PRId64, kernel_at(isa)->isa, logits_pattern_name(pattern), n, k);
      check_topk(kernel_at(isa), logits, n, k, order);
    }
  }
  test_check(test_checksum(0, logits, n) == input, "the input has changed");
  free(order);
  test_buffer_free(&memory);
}

static void check_topk_patterns(const test_options *options) {
  static const int64_t sizes[] = {1,   2,   7,   8,   15,  16,  17,  33,  63,   64,   65,   80,    127,   255,
                                  256, 257, 272, 273, 320, 321, 511, 512, 513,  528,  529,  575,   1000,  1024,
                                  576, 577, 600, 640, 700, 767, 768, 769, 1040, 2500, 4099, 49152, 151936};
  const int n_sizes = (int)(sizeof sizes / sizeof sizes[0]) - (options->quick ? 14 : 0);
  for (int i = 0; i < n_sizes; ++i) {
    for (int pattern = 0; pattern < LOGITS_N_PATTERNS; ++pattern) {
      check_topk_of(options, sizes[i], (logits_pattern)pattern);
    }
  }
}

/* --------------------------------------------------------------------------------------------------------- the walk */

typedef struct walk_results {
  test_buffer path, scores, q, path_q;
} walk_results;

typedef struct walk_call {
  const df2_select_kernel *kernel;
  df2_select_walk args;
} walk_call;

static void walk(void *context) {
  const walk_call *c = context;
  c->kernel->walk(&c->args);
}

static float *floats_of(const test_buffer *buffer) {
  return (float *)(void *)buffer->data;
}

static int32_t *path_of(const walk_results *r) {
  return (int32_t *)(void *)r->path.data;
}

static test_buffer output_new(int64_t n) {
  test_buffer made = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  memset(made.data, JUNK, made.size);
  return made;
}

/* Runs a kernel, with a workspace just as large as it must be. */
static walk_results compute(const df2_select_kernel *kernel, walk_problem *p) {
  const int64_t n = p->shape.n_positions, k = p->shape.k;
  walk_results r = {output_new(n), output_new(n * k), output_new(n * k), output_new(n)};
  const size_t n_floats = df2_select_walk_workspace_floats(k, p->shape.rank);
  test_buffer workspace = test_buffer_new(n_floats * sizeof(float), 64);
  memset(workspace.data, JUNK, workspace.size);
  walk_call c = {kernel, p->args};
  c.args.path = path_of(&r);
  c.args.scores = floats_of(&r.scores);
  c.args.q = floats_of(&r.q);
  c.args.path_q = floats_of(&r.path_q);
  c.args.workspace = floats_of(&workspace);
  watched(walk, &c);
  const int64_t n_wrong_reads = p->predecessor.n_wrong_reads + p->successor.n_wrong_reads;
  test_check(n_wrong_reads == 0, "%d wrong calls of read_row", (int)n_wrong_reads);
  test_check(test_buffer_guards_intact(&r.path) && test_buffer_guards_intact(&r.scores) &&
                 test_buffer_guards_intact(&r.q) && test_buffer_guards_intact(&r.path_q),
             "wrote outside the outputs");
  test_check(test_buffer_guards_intact(&workspace), "wrote outside the workspace");
  test_buffer_free(&workspace);
  return r;
}

static void results_free(walk_results *r) {
  test_buffer_free(&r->path);
  test_buffer_free(&r->scores);
  test_buffer_free(&r->q);
  test_buffer_free(&r->path_q);
}

static void compare_floats(const test_buffer *found, const test_buffer *expected, const char *what) {
  const float *a = floats_of(found), *b = floats_of(expected);
  const int64_t at = test_first_difference(a, b, (int64_t)(found->size / sizeof(float)));
  test_check(at < 0, "%s %d: %a, not %a", what, (int)at, at < 0 ? 0.0 : (double)a[at], at < 0 ? 0.0 : (double)b[at]);
}

static void compare(const walk_results *found, const walk_results *expected) {
  compare_floats(&found->scores, &expected->scores, "score");
  compare_floats(&found->q, &expected->q, "q");
  compare_floats(&found->path_q, &expected->path_q, "path_q");
  test_check(memcmp(found->path.data, expected->path.data, found->path.size) == 0, "another path");
}

/* Half a unit in the last place for each of the roundings that a summand goes through at most: its first factor's, one
 * for each 16th of the products, four of the halves, the logit's. */
static double allowed_score_error(const walk_problem *p, double magnitude) {
  const double n_roundings = 1.0 + (double)((p->shape.rank + 15) / 16) + 4.0 + 1.0;
  return n_roundings * 0.5 * (double)FLT_EPSILON * magnitude;
}

static void check_scores(const walk_problem *p, const float *scores, int64_t position, int32_t previous) {
  for (int64_t c = 0; c < p->shape.k; ++c) {
    double magnitude;
    const double exact = walk_score(p, position, c, previous, &magnitude);
    if (isinf(exact)) {
      test_check((double)scores[c] == exact, "score (%d, %d): %g, not %g", (int)position, (int)c, (double)scores[c],
                 exact);
      continue;
    }
    /* coarse values have no roundings */
    const double allowed = p->shape.values == WALK_COARSE ? 0.0 : allowed_score_error(p, magnitude);
    const double error = fabs((double)scores[c] - exact);
    largest_error = allowed > 0.0 ? fmax(largest_error, error / allowed) : largest_error;
    test_check(error <= allowed, "score (%d, %d): %g, not %g; allowed error %g", (int)position, (int)c,
               (double)scores[c], exact, allowed);
  }
}

/* The softmax of the scores, as returned, in double precision. */
static void check_q(const walk_problem *p, const float *scores, const float *q, int64_t position) {
  const double t = p->shape.temperature == 0.0f ? 1.0 : (double)p->shape.temperature;
  double largest = -INFINITY, sum = 0.0;
  for (int64_t c = 0; c < p->shape.k; ++c) {
    largest = fmax(largest, (double)scores[c]);
  }
  double weights[64];
  for (int64_t c = 0; c < p->shape.k; ++c) {
    weights[c] = (double)scores[c] == largest ? 1.0 : exp(((double)scores[c] - largest) / t);
    sum += weights[c];
  }
  for (int64_t c = 0; c < p->shape.k; ++c) {
    const double exact = weights[c] / sum;
    /* exp's own error, its argument's two roundings, and those of the sum and the quotient; twice, for the sum's parts;
     * 2e-38 for what is cut off below -87 */
    const double roundings = 2.0 * fmin(-log(weights[c]), 88.0) + 10.0;
    const double allowed = 2.0 * (2e-7 + 0.5 * (double)FLT_EPSILON * roundings) * exact + 2e-38;
    test_check(fabs((double)q[c] - exact) <= allowed, "q (%d, %d): %g, not %g", (int)position, (int)c, (double)q[c],
               exact);
  }
}

static void check_definition(const walk_problem *p, const walk_results *found) {
  const int64_t k = p->shape.k;
  int32_t previous = p->args.anchor;
  for (int64_t i = 0; i < p->shape.n_positions; ++i) {
    const float *scores = floats_of(&found->scores) + i * k, *q = floats_of(&found->q) + i * k;
    check_scores(p, scores, i, previous);
    check_q(p, scores, q, i);
    const int64_t choice = walk_choice(p, i, scores, q);
    previous = path_of(found)[i];
    test_check(previous == p->args.ids[i * k + choice], "position %d: chose %d, not candidate %d", (int)i,
               (int)previous, (int)choice);
    test_check(floats_of(&found->path_q)[i] == q[choice], "position %d: path_q is %g", (int)i,
               (double)floats_of(&found->path_q)[i]);
  }
}

static void name_walk(const char *isa, const walk_shape *s) {
  static const char *const values[] = {"ordinary", "coarse", "not finite"};
  test_case("%s: n_positions=%d k=%d rank=%d temperature=%g, %s values", isa, (int)s->n_positions, (int)s->k,
            (int)s->rank, (double)s->temperature, values[s->values]);
}

static void check_walk(const test_options *options, const walk_shape *shape) {
  test_random random = test_random_for(options->seed, "walk", (uint64_t)(shape->k * 1000 + shape->rank));
  walk_problem p;
  walk_problem_new(&p, shape, &random);
  const uint64_t input = walk_problem_checksum(&p);
  name_walk("ref", shape);
  walk_results expected = compute(df2_select_find(0), &p);
  check_definition(&p, &expected);
  checksum = test_checksum(checksum, floats_of(&expected.scores), shape->n_positions * shape->k);
  checksum = test_checksum(checksum, floats_of(&expected.q), shape->n_positions * shape->k);
  for (int32_t isa = 0; (isa = test_isa_next(options, isa_at, isa)) >= 0; ++isa) {
    name_walk(kernel_at(isa)->isa, shape);
    walk_results found = compute(kernel_at(isa), &p);
    compare(&found, &expected);
    results_free(&found);
  }
  test_check(walk_problem_checksum(&p) == input, "the input has changed");
  results_free(&expected);
  walk_problem_free(&p);
}

/* All pairs of k and rank with all kinds of values; the other properties take turns. */
static void check_walks(const test_options *options) {
  static const int64_t counts[] = {1, 4, 16, 17, 64, 2, 3, 5, 15, 31, 32, 33, 63};
  static const int64_t ranks[] = {0, 1, 17, 64, 100, 256, 3, 15, 16, 31, 32, 33, 128};
  static const int64_t positions[] = {15, 1, 7, 0, 2, 63, 3};
  static const float temperatures[] = {0.0f, 1.0f, 0.1f, 0.0f, 3.0f};
  const int n_sizes = options->quick ? 6 : 13;
  int turn = 0;
  for (int i = 0; i < n_sizes; ++i) {
    for (int j = 0; j < n_sizes; ++j) {
      for (int values = 0; values < WALK_N_VALUES; ++values, ++turn) {
        const walk_shape shape = {positions[turn % 7], counts[i], ranks[j], temperatures[turn % 5],
                                  (walk_values)values};
        check_walk(options, &shape);
      }
    }
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref's scores: %.2f of what is allowed\n", largest_error);
}

/* Over a regular grid of uniform numbers, each candidate is drawn as often as its q says, within one step of the grid
 * and what the cumulative sum rounds. */
static void check_frequencies(const test_options *options, int64_t k, float temperature) {
  const int n_draws = options->quick ? 512 : 4096;
  const walk_shape shape = {1, k, 32, temperature, WALK_ORDINARY};
  test_random random = test_random_for(options->seed, "frequencies", (uint64_t)k);
  walk_problem p;
  walk_problem_new(&p, &shape, &random);
  for (int32_t isa = 0; (isa = test_isa_next(options, isa_at, isa)) >= 0; ++isa) {
    test_case("%s: frequencies of %d candidates at temperature %g", kernel_at(isa)->isa, (int)k, (double)temperature);
    int64_t n_drawn[64] = {0};
    double q[64] = {0.0};
    for (int draw = 0; draw < n_draws; ++draw) {
      floats_of(&p.uniforms)[0] = (float)draw / (float)n_draws;
      walk_results found = compute(kernel_at(isa), &p);
      for (int64_t c = 0; c < k; ++c) {
        n_drawn[c] += path_of(&found)[0] == p.args.ids[c];
        q[c] = (double)floats_of(&found.q)[c];
      }
      results_free(&found);
    }
    for (int64_t c = 0; c < k; ++c) {
      test_check(fabs((double)n_drawn[c] / n_draws - q[c]) <= 1.02 / n_draws, "candidate %d: %d of %d, but q is %g",
                 (int)c, (int)n_drawn[c], n_draws, q[c]);
    }
  }
  walk_problem_free(&p);
}

/* One position whose scores are its logits. */
typedef struct special_case {
  int64_t k;
  float logits[5], q[5];
  int64_t largest; /* what a greedy walk takes */
  float uniform;
  int64_t drawn;
} special_case;

static void check_special_case(const df2_select_kernel *kernel, const special_case *special, float temperature) {
  const walk_shape shape = {1, special->k, 0, temperature, WALK_ORDINARY};
  test_random random = test_random_for(1, "special", 0);
  walk_problem p;
  walk_problem_new(&p, &shape, &random);
  memcpy(p.logits.data, special->logits, p.logits.size);
  floats_of(&p.uniforms)[0] = special->uniform;
  walk_results found = compute(kernel, &p);
  const int64_t chosen = temperature > 0.0f ? special->drawn : special->largest;
  test_check(path_of(&found)[0] == p.args.ids[chosen], "did not choose candidate %d", (int)chosen);
  for (int64_t c = 0; c < special->k; ++c) {
    const float score = isnan(special->logits[c]) ? -INFINITY : special->logits[c];
    test_check(floats_of(&found.scores)[c] == score, "score %d is %g", (int)c, (double)floats_of(&found.scores)[c]);
    test_check(floats_of(&found.q)[c] == special->q[c], "q %d is %g", (int)c, (double)floats_of(&found.q)[c]);
  }
  results_free(&found);
  walk_problem_free(&p);
}

/* What select.h says about scores that are not finite; at any temperature. */
static void check_special_cases(const test_options *options) {
  static const special_case cases[] = {
      {5, {1.0f, INFINITY, NAN, INFINITY, -INFINITY}, {0.0f, 0.5f, 0.0f, 0.5f, 0.0f}, 1, 0.5f, 3},
      {4, {-INFINITY, NAN, NAN, -INFINITY}, {0.25f, 0.25f, 0.25f, 0.25f}, 0, 0.6f, 2},
      {4, {-INFINITY, 0.0f, NAN, -0.0f}, {0.0f, 0.5f, 0.0f, 0.5f}, 1, 0.0f, 1},
      {2, {-3e38f, 3e38f}, {0.0f, 1.0f}, 1, 0.0f, 1},
      {1, {NAN}, {1.0f}, 0, 0x1.fffffep-1f, 0},
      {1, {INFINITY}, {1.0f}, 0, 0.0f, 0},
  };
  static const float temperatures[] = {0.0f, 1.0f, 1e-45f, 1e-30f, FLT_MAX};
  for (int32_t isa = 0; (isa = test_isa_next(options, isa_at, isa)) >= 0; ++isa) {
    for (int i = 0; i < (int)(sizeof cases / sizeof cases[0]); ++i) {
      for (int t = 0; t < 5; ++t) {
        test_case("%s: special case %d, temperature %g", kernel_at(isa)->isa, i, (double)temperatures[t]);
        check_special_case(kernel_at(isa), &cases[i], temperatures[t]);
      }
    }
  }
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("select %s\n", df2_select_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_topk_patterns(&options);
  check_walks(&options);
  check_special_cases(&options);
  check_frequencies(&options, 16, 1.0f);
  check_frequencies(&options, 5, 0.3f);
  if (!options.quick) {
    check_frequencies(&options, 64, 4.0f);
  }
  return test_finish("select");
}
