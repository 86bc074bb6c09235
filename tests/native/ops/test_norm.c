/* Every norm kernel that was compiled and that this CPU runs: all rows together, and split, against ref.c with each row
 * alone, bit for bit; ref.c against the definition in double precision; and what kernels must leave alone. With
 * --dispatch: prints which kernel would be chosen. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "isas.h"
#include "ops/common/cpu.h"
#include "ops/common/split.h"
#include "ops/norm/norm.h"
#include "watch.h"

/* Every buffer ends with the last byte it needs. */
typedef struct problem {
  int64_t n_embd, n_rows, n; /* n: floats of all rows */
  float eps;
  float *x, *weight;
  test_buffer x_memory, weight_memory;
} problem;

typedef struct call {
  const df2_norm_kernel *kernel;
  const problem *problem;
  const float *x;
  float *out;
  df2_range rows;
} call;

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static void norm(void *context) {
  const call *c = context;
  const problem *p = c->problem;
  c->kernel->norm(c->out, c->x, p->weight, p->eps, p->n_embd, c->rows.begin, c->rows.end);
}

/* -------------------------------------------------------------------------------------------------------- problems */

static float *floats_of(const test_buffer *buffer) {
  return (float *)(void *)buffer->data;
}

static float *random_floats_new(test_buffer *buffer, int64_t n, float magnitude, test_random *random) {
  *buffer = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    floats_of(buffer)[i] = test_random_float(random) * magnitude;
  }
  return floats_of(buffer);
}

static problem problem_new(int64_t n_embd, int64_t n_rows, test_random *random) {
  problem p = {.n_embd = n_embd, .n_rows = n_rows, .n = n_rows * n_embd};
  p.x = random_floats_new(&p.x_memory, p.n, 4.0f, random);
  p.weight = random_floats_new(&p.weight_memory, n_embd, 1.5f, random);
  p.eps = test_random_below(random, 2) == 0 ? 1e-6f : 0.25f; /* the second shows in every value */
  return p;
}

static void problem_free(problem *p) {
  test_buffer_free(&p->x_memory);
  test_buffer_free(&p->weight_memory);
}

/* ----------------------------------------------------------------------------------------------------------- calls */

/* A copy of x of which only the rows are there: all others are NaN. */
static test_buffer part_new(const problem *p, df2_range rows) {
  test_buffer part = test_buffer_new(p->x_memory.size, sizeof(float));
  memset(part.data, 0xff, part.size);
  const int64_t n = (rows.end - rows.begin) * p->n_embd;
  memcpy(floats_of(&part) + rows.begin * p->n_embd, p->x + rows.begin * p->n_embd, (size_t)n * sizeof(float));
  return part;
}

/* Norms rows, and takes them from the output, of which nothing else may have been written. in_place: it is the input.
 */
static void compute(float *results, const df2_norm_kernel *kernel, const problem *p, df2_range rows, bool in_place) {
  test_buffer input = part_new(p, rows);
  test_buffer separate = test_buffer_new(input.size, sizeof(float));
  test_buffer *output = in_place ? &input : &separate;
  memset(separate.data, 0xff, separate.size);
  const call c = {.kernel = kernel, .problem = p, .x = floats_of(&input), .out = floats_of(output), .rows = rows};
  const char *broken = test_watched_call(norm, (void *)&c, has_sme);
  test_check(broken == NULL, "%s", broken);
  const int64_t first = rows.begin * p->n_embd, last = rows.end * p->n_embd;
  int64_t n_changed = 0;
  for (int64_t i = 0; i < p->n; ++i) {
    n_changed += (i < first || i >= last) && test_float_bits(floats_of(output)[i]) != UINT32_MAX;
  }
  test_check(n_changed == 0, "wrote to other rows");
  test_check(test_buffer_guards_intact(&input) && test_buffer_guards_intact(&separate), "wrote outside the rows");
  memcpy(results + first, floats_of(output) + first, (size_t)(last - first) * sizeof(float));
  test_buffer_free(&input);
  test_buffer_free(&separate);
}

static void name_case(const char *isa, const problem *p, const char *what) {
  test_case("%s: %s, n_embd=%d n_rows=%d, eps %g", isa, what, (int)p->n_embd, (int)p->n_rows, (double)p->eps);
}

/* By ref.c, each row alone. */
static float *compute_alone(const problem *p) {
  float *made = malloc((size_t)p->n * sizeof(float));
  name_case("ref", p, "alone");
  for (int64_t row = 0; row < p->n_rows; ++row) {
    compute(made, df2_norm_find(0), p, (df2_range){row, row + 1}, false);
  }
  return made;
}

static void compare(const float *found, const float *expected, const problem *p) {
  const int64_t at = test_first_difference(found, expected, p->n);
  test_check(at < 0, "row %d, channel %d: %a, not %a", (int)(at / p->n_embd), (int)(at % p->n_embd),
             at < 0 ? 0.0 : (double)found[at], at < 0 ? 0.0 : (double)expected[at]);
}

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_norm_kernel *kernel = df2_norm_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

/* Whether any kernel, and any number of threads that share the rows, gives the same bits. */
static void check_kernels(const test_options *options, const problem *p, const float *expected, const char *what) {
  float *found = malloc((size_t)p->n * sizeof(float));
  uint32_t features;
  const uint64_t input = test_checksum(test_checksum(0, p->x, p->n), p->weight, p->n_embd);
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_norm_kernel *kernel = df2_norm_kernel_at(i, &features);
    name_case(kernel->isa, p, what);
    for (int64_t n_threads = 1; n_threads <= 3; ++n_threads) {
      memset(found, 0xff, (size_t)p->n * sizeof(float));
      for (int64_t thread = n_threads - 1; thread >= 0; --thread) {
        compute(found, kernel, p, df2_split(p->n_rows, thread, n_threads), n_threads > 1);
      }
      compare(found, expected, p);
    }
  }
  test_check(test_checksum(test_checksum(0, p->x, p->n), p->weight, p->n_embd) == input, "wrote to its input");
  free(found);
}

/* -------------------------------------------------------------------------------------------------- random problems */

/* What rounding may make of a row: of its length, that is of n_embd / 32 squares added up, six halvings, and the root;
 * and of the products of each value. */
static void check_row(const problem *p, const float *found, int64_t row) {
  const double unit = (double)FLT_EPSILON / 2.0; /* of one rounding, relative */
  const double roundings = ((double)(p->n_embd / 32) + 10.0) / 2.0 + 4.0;
  double *exact = malloc((size_t)p->n_embd * sizeof(double));
  for (int64_t c = 0; c < p->n_embd; ++c) {
    exact[c] = (double)p->x[row * p->n_embd + c];
  }
  df2_norm_ref_f64(exact, p->weight, p->eps, p->n_embd);
  double worst = 0.0;
  int64_t at = 0;
  for (int64_t c = 0; c < p->n_embd; ++c) {
    const double allowed = roundings * unit * fabs(exact[c]) * 1.01 + (double)FLT_MIN;
    const double error = fabs((double)found[row * p->n_embd + c] - exact[c]) / allowed;
    if (!(error <= worst)) {
      worst = error;
      at = c;
    }
  }
  largest_error = fmax(largest_error, worst);
  test_check(worst <= 1.0, "row %d, channel %d: %.9g, not %.9g: %.2f times what is allowed", (int)row, (int)at,
             (double)found[row * p->n_embd + at], exact[at], worst);
  free(exact);
}

static void check_random_problems(const test_options *options) {
  static const int64_t sizes[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  24,  31,  32,   33,   40,   47,
                                  48, 56, 63, 64, 65, 127, 128, 160, 255, 576, 833, 1024, 2560, 4096, 6656};
  static const int64_t rows[] = {1, 2, 3, 5, 8, 16, 33};
  const int n_sizes = (int)(sizeof sizes / sizeof sizes[0]) - (options->quick ? 4 : 0);
  for (int i = 0; i < 4 * n_sizes; ++i) {
    test_random random = test_random_for(options->seed, "norm", (uint64_t)i);
    problem p = problem_new(sizes[i % n_sizes], rows[(i + i / n_sizes) % (options->quick ? 6 : 7)], &random);
    float *expected = compute_alone(&p);
    for (int64_t row = 0; row < p.n_rows; ++row) {
      check_row(&p, expected, row);
    }
    checksum = test_checksum(checksum, expected, p.n);
    check_kernels(options, &p, expected, "random");
    free(expected);
    problem_free(&p);
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref: %.2f of what is allowed\n", largest_error);
}

/* ------------------------------------------------------------------------------------------------ special problems */

#define SPECIAL_ROWS 6

/* Rows of one magnitude: their norms are their signs, exactly. */
static void check_signs(const test_options *options, int64_t n_embd) {
  test_random random = test_random_for(options->seed, "signs", (uint64_t)n_embd);
  problem p = problem_new(n_embd, SPECIAL_ROWS, &random);
  p.eps = 0.0f;
  for (int64_t i = 0; i < p.n; ++i) {
    p.x[i] = test_random_below(&random, 2) == 0 ? 2.0f : -2.0f;
  }
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    n_wrong += expected[i] != p.x[i] / 2.0f * p.weight[i % n_embd];
  }
  test_check(n_wrong == 0, "signs: %d wrong values", (int)n_wrong);
  check_kernels(options, &p, expected, "signs");
  free(expected);
  problem_free(&p);
}

/* A NaN makes one of its row, and of no other. */
static void check_nan(const test_options *options, int64_t n_embd, int64_t row, int64_t channel) {
  test_random random = test_random_for(options->seed, "nan", (uint64_t)(row * n_embd + channel));
  problem p = problem_new(n_embd, SPECIAL_ROWS, &random);
  float *clean = compute_alone(&p);
  p.x[row * n_embd + channel] = NAN;
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    n_wrong += i / n_embd == row ? !isnan(expected[i]) : expected[i] != clean[i];
  }
  test_check(n_wrong == 0, "NaN in row %d, channel %d: %d wrong values", (int)row, (int)channel, (int)n_wrong);
  check_kernels(options, &p, expected, "NaN");
  free(clean);
  free(expected);
  problem_free(&p);
}

/* Squares that leave float32's range: because of one infinity, or all of them (channel < 0). */
static void check_overflow(const test_options *options, int64_t n_embd, int64_t channel) {
  test_random random = test_random_for(options->seed, "overflow", (uint64_t)(channel + 1));
  problem p = problem_new(n_embd, SPECIAL_ROWS, &random);
  for (int64_t c = 0; c < n_embd; ++c) {
    float *value = p.x + 2 * n_embd + c;
    *value = channel < 0 ? 1e30f : c == channel ? INFINITY : *value;
  }
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t c = 0; c < n_embd; ++c) {
    const float normed = expected[2 * n_embd + c];
    n_wrong += c == channel ? !isnan(normed) : normed != 0.0f;
  }
  test_check(n_wrong == 0, "overflow at channel %d: %d wrong values", (int)channel, (int)n_wrong);
  check_kernels(options, &p, expected, "overflow");
  free(expected);
  problem_free(&p);
}

/* Zeros, and values whose squares are zeros, with eps 0. */
static void check_underflow(const test_options *options, int64_t n_embd, float value) {
  test_random random = test_random_for(options->seed, "underflow", (uint64_t)n_embd);
  problem p = problem_new(n_embd, SPECIAL_ROWS, &random);
  p.eps = 0.0f;
  for (int64_t i = 0; i < p.n; ++i) {
    p.x[i] = value;
  }
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < p.n; ++i) {
    n_wrong += value == 0.0f ? !isnan(expected[i]) : !isinf(expected[i]);
  }
  test_check(n_wrong == 0, "%g: %d wrong values", (double)value, (int)n_wrong);
  check_kernels(options, &p, expected, "underflow");
  free(expected);
  problem_free(&p);
}

static void check_special_problems(const test_options *options) {
  static const int64_t sizes[] = {64, 30, 88};
  for (int i = 0; i < 3; ++i) {
    const int64_t n_embd = sizes[i];
    const int64_t channels[] = {0, 1, n_embd / 2, n_embd - 1};
    check_signs(options, n_embd);
    for (int64_t row = 0; row < SPECIAL_ROWS; ++row) {
      check_nan(options, n_embd, row, channels[row % 4]);
    }
    for (int c = 0; c < 4; ++c) {
      check_overflow(options, n_embd, channels[c]);
    }
    check_overflow(options, n_embd, -1);
    check_underflow(options, n_embd, 0.0f);
    check_underflow(options, n_embd, 1e-30f);
  }
}

/* Shares follow each other, cover everything, and differ by one at most. */
static void check_split(void) {
  for (int64_t n = 0; n <= 40; ++n) {
    for (int64_t n_parts = 1; n_parts <= 9; ++n_parts) {
      test_case("split of %d among %d", (int)n, (int)n_parts);
      int64_t at = 0;
      for (int64_t part = 0; part < n_parts; ++part) {
        const df2_range share = df2_split(n, part, n_parts);
        const int64_t size = share.end - share.begin;
        test_check(share.begin == at && size >= n / n_parts && size <= (n + n_parts - 1) / n_parts,
                   "part %d is [%d, %d)", (int)part, (int)share.begin, (int)share.end);
        at = share.end;
      }
      test_check(at == n, "ends at %d", (int)at);
    }
  }
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("norm %s\n", df2_norm_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_split();
  check_random_problems(&options);
  check_special_problems(&options);
  return test_finish("norm");
}
