/* Every kernel of the dynamic convolution that was compiled and that this CPU runs: all rows together, and split,
 * against ref.c with each row alone, bit for bit; ref.c against whole numbers and against the definition in double
 * precision; and what kernels must leave alone. With --dispatch: prints which kernel would be chosen. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dynconv_data.h"
#include "harness.h"
#include "isas.h"
#include "ops/common/cpu.h"
#include "ops/dynconv/dynconv.h"
#include "watch.h"

/* Of all rows of a problem. */
typedef struct results {
  int64_t n; /* floats of each */
  float *convolved, *sum, *normed;
} results;

typedef struct call {
  const df2_dynconv_kernel *kernel;
  const dynconv_problem *problem;
  const float *x;
  df2_dynconv_side side;
  df2_dynconv_finish finish;
  int64_t row_begin, row_end;
  float *out, *normed;
} call;

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static void convolve(void *context) {
  const call *c = context;
  c->kernel->convolve(c->out, c->x, &c->side, &c->problem->shape, c->row_begin, c->row_end);
}

static void finish(void *context) {
  const call *c = context;
  const df2_dynconv_side *side = c->problem->used_side != NULL ? &c->side : NULL;
  c->kernel->finish(c->out, c->normed, c->x, side, &c->problem->shape, &c->finish, c->row_begin, c->row_end);
}

static void watched(void (*body)(void *), call *c, const char *name) {
  const char *broken = test_watched_call(body, c, has_sme);
  test_check(broken == NULL, "%s: %s", name, broken);
}

/* --------------------------------------------------------------------------------------------------------- results */

static results results_new(const dynconv_problem *p) {
  results r = {.n = p->n_rows * p->shape.n_embd};
  r.convolved = malloc((size_t)(3 * r.n) * sizeof(float));
  r.sum = r.convolved + r.n;
  r.normed = r.sum + r.n;
  return r;
}

static void results_free(results *r) {
  free(r->convolved);
}

/* Memory for results. */
static test_buffer outputs_new(const results *r) {
  return test_buffer_new((size_t)r->n * sizeof(float), sizeof(float));
}

/* A copy of which only floats [first, last) are there: all others are NaN. */
static test_buffer part_new(const test_buffer *given, int64_t first, int64_t last) {
  test_buffer part = test_buffer_new(given->size, sizeof(float));
  memset(part.data, 0xff, part.size);
  if (first < last) {
    memcpy(part.data + first * 4, given->data + first * 4, (size_t)(last - first) * 4);
  }
  return part;
}

static float *floats_of(const test_buffer *buffer) {
  return (float *)(void *)buffer->data;
}

/* Takes the rows of a call from its output, outside of which nothing may have been written. */
static void take_rows(float *results, const call *c, test_buffer *output, const char *what) {
  const int64_t n_embd = c->problem->shape.n_embd;
  const size_t first = (size_t)(c->row_begin * n_embd) * sizeof(float);
  const size_t last = (size_t)(c->row_end * n_embd) * sizeof(float);
  test_check(test_buffer_guards_intact(output), "%s: wrote outside the results", what);
  test_check(test_buffer_untouched(output, 0, first) && test_buffer_untouched(output, last, output->size),
             "%s: wrote to other rows", what);
  memcpy(results + c->row_begin * n_embd, output->data + first, last - first);
  test_buffer_free(output);
}

/* Takes the rows of a call that replaced its input; the input's other rows must be what they were, NaN. */
static void take_replaced(float *results, const call *c, test_buffer *input, const char *what) {
  const int64_t n_embd = c->problem->shape.n_embd;
  int64_t n_changed = 0;
  for (int64_t i = 0; i < c->problem->n_rows * n_embd; ++i) {
    const bool is_output = i >= c->row_begin * n_embd && i < c->row_end * n_embd;
    n_changed += !is_output && test_float_bits(floats_of(input)[i]) != UINT32_MAX;
  }
  test_check(n_changed == 0 && test_buffer_guards_intact(input), "%s: wrote to other rows", what);
  memcpy(results + c->row_begin * n_embd, floats_of(input) + c->row_begin * n_embd,
         (size_t)((c->row_end - c->row_begin) * n_embd) * sizeof(float));
}

/* Runs a kernel on rows [begin, end), on inputs that hold nothing but what these rows may depend on. in_place: sums
 * replace the residual. */
static void compute(const results *r, const df2_dynconv_kernel *kernel, const dynconv_problem *p, int64_t begin,
                    int64_t end, bool in_place) {
  const int64_t n_embd = p->shape.n_embd, stride = p->side.delta_stride;
  const int64_t earliest = begin - p->shape.kernel_size + 1;
  const int64_t n_delta = (int64_t)(p->delta_memory.size / sizeof(float));
  test_buffer seen = part_new(&p->x_memory, (earliest > 0 ? earliest : 0) * n_embd, end * n_embd);
  test_buffer rows = part_new(&p->x_memory, begin * n_embd, end * n_embd);
  test_buffer residual = part_new(&p->residual_memory, begin * n_embd, end * n_embd);
  test_buffer delta = part_new(&p->delta_memory, begin * stride, end == p->n_rows ? n_delta : end * stride);
  call c = {.kernel = kernel, .problem = p, .x = floats_of(&seen), .side = p->side, .finish = p->finish};
  c.side.delta = floats_of(&delta);
  c.finish.residual = floats_of(&residual);
  c.row_begin = begin;
  c.row_end = end;

  test_buffer output = outputs_new(r), second = outputs_new(r);
  c.out = floats_of(&output);
  watched(convolve, &c, "convolve");
  take_rows(r->convolved, &c, &output, "convolve");

  output = outputs_new(r);
  c.x = p->used_side != NULL ? floats_of(&seen) : floats_of(&rows);
  c.out = in_place ? floats_of(&residual) : floats_of(&output);
  c.normed = floats_of(&second);
  watched(finish, &c, "finish");
  if (in_place) {
    take_replaced(r->sum, &c, &residual, "finish: sum");
    test_buffer_free(&output);
  } else {
    take_rows(r->sum, &c, &output, "finish: sum");
  }
  take_rows(r->normed, &c, &second, "finish: normed");
  test_buffer_free(&seen);
  test_buffer_free(&rows);
  test_buffer_free(&residual);
  test_buffer_free(&delta);
}

static void compare_values(const float *found, const float *expected, const results *r, const dynconv_problem *p,
                           const char *what) {
  const int64_t at = test_first_difference(found, expected, r->n);
  test_check(at < 0, "%s, row %d, channel %d: %a, not %a", what, (int)(at / p->shape.n_embd),
             (int)(at % p->shape.n_embd), at < 0 ? 0.0 : (double)found[at], at < 0 ? 0.0 : (double)expected[at]);
}

static void compare(const results *found, const results *expected, const dynconv_problem *p) {
  compare_values(found->convolved, expected->convolved, found, p, "convolve");
  compare_values(found->sum, expected->sum, found, p, "finish: sum");
  compare_values(found->normed, expected->normed, found, p, "finish: normed");
}

/* --------------------------------------------------------------------------------------------------------- kernels */

static const df2_dynconv_kernel *reference(void) {
  return df2_dynconv_find(0);
}

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_dynconv_kernel *kernel = df2_dynconv_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

static void name_case(const char *isa, const dynconv_problem *p, const char *what) {
  const df2_dynconv_shape *s = &p->shape;
  test_case("%s: %s, n_embd=%d group_size=%d kernel_size=%d n_rows=%d%s%s, scale %g", isa, what, (int)s->n_embd,
            (int)s->group_size, (int)s->kernel_size, (int)p->n_rows, p->used_side == NULL ? ", no convolution" : "",
            p->finish.post_norm != NULL ? ", norm after it" : "", (double)p->finish.scale);
}

/* -------------------------------------------------------------------------------------------------- random problems */

static uint64_t hash_problem(const dynconv_problem *p) {
  const test_buffer *buffers[] = {&p->x_memory,        &p->base_memory,      &p->delta_memory,
                                  &p->residual_memory, &p->post_norm_memory, &p->norm_memory};
  uint64_t hash = 1;
  for (size_t b = 0; b < sizeof buffers / sizeof buffers[0]; ++b) {
    for (size_t i = 0; i < buffers[b]->size; ++i) {
      hash = (hash ^ buffers[b]->data[i]) * 0x100000001b3u;
    }
  }
  return hash;
}

static const double unit = (double)FLT_EPSILON / 2.0; /* of one rounding, relative */

/* What rounding may make of one channel of a convolution: of each coefficient, product and sum. */
static double convolution_error(const dynconv_problem *p, int64_t row, int64_t c) {
  const int64_t n_taps = dynconv_n_taps(p, row), n_embd = p->shape.n_embd;
  double magnitude = 0.0;
  for (int64_t t = 0; t < n_taps; ++t) {
    const double base = (double)p->side.base[t * n_embd + c];
    const double delta = (double)dynconv_delta_of(p, row, t)[c / p->shape.group_size];
    magnitude += (fabs(base) + fabs(delta)) * fabs((double)p->x[(row - t) * n_embd + c]);
  }
  return (double)(n_taps + 1) * unit * magnitude;
}

/* What becomes of the errors of a row's values when they are normed: each value's own, and that of the row's length, of
 * which all have their share. The length is a sum of n_embd / 32 squares, six times halved, and its root. */
static void norm_errors(double *errors, const double *values, const float *weight, double eps, int64_t n) {
  double squares = 0.0, square_errors = 0.0;
  for (int64_t c = 0; c < n; ++c) {
    squares += values[c] * values[c];
    square_errors += errors[c] * errors[c];
  }
  const double length = sqrt(squares / (double)n + eps);
  const double roundings = ((double)(n / 32) + 10.0) / 2.0 + 4.0;
  const double of_length = sqrt(square_errors / (double)n) / length + roundings * unit;
  for (int64_t c = 0; c < n; ++c) {
    errors[c] = fabs((double)weight[c]) / length * (errors[c] + fabs(values[c]) * of_length);
  }
}

static void check_values(const float *found, const double *exact, const double *errors, int64_t n, const char *what) {
  double worst = 0.0;
  int64_t at = 0;
  for (int64_t c = 0; c < n; ++c) {
    const double error = fabs((double)found[c] - exact[c]) / (errors[c] * 1.01 + (double)FLT_MIN);
    if (!(error <= worst)) {
      worst = error;
      at = c;
    }
  }
  largest_error = fmax(largest_error, worst);
  test_check(worst <= 1.0, "%s, channel %d: %.9g, not %.9g: %.2f times what is allowed", what, (int)at,
             (double)found[at], exact[at], worst);
}

static void check_row(const dynconv_problem *p, const results *found, int64_t row) {
  const int64_t n = p->shape.n_embd;
  double *memory = malloc((size_t)(4 * n) * sizeof(double));
  double *value = memory, *sum = value + n, *normed = sum + n, *errors = normed + n;
  for (int64_t c = 0; c < n; ++c) {
    errors[c] = convolution_error(p, row, c);
  }
  df2_dynconv_convolve_ref_f64(value, p->x, &p->side, &p->shape, row);
  check_values(found->convolved + row * n, value, errors, n, "convolve");

  for (int64_t c = 0; c < n && p->used_side == NULL; ++c) {
    value[c] = (double)p->x[row * n + c];
    errors[c] = 0.0;
  }
  if (p->finish.post_norm != NULL) {
    norm_errors(errors, value, p->finish.post_norm, (double)p->finish.norm_eps, n);
  }
  df2_dynconv_finish_ref_f64(sum, normed, p->x, p->used_side, &p->shape, &p->finish, row);
  for (int64_t c = 0; c < n; ++c) {
    /* the sum's rounding, and the product's */
    errors[c] = errors[c] * fabs((double)p->finish.scale) + 2.0 * unit * fabs(sum[c]);
  }
  check_values(found->sum + row * n, sum, errors, n, "finish: sum");
  norm_errors(errors, sum, p->finish.norm, (double)p->finish.norm_eps, n);
  check_values(found->normed + row * n, normed, errors, n, "finish: normed");
  free(memory);
}

/* Whether any kernel, and any way to divide rows between calls, gives the same bits. */
static void check_kernels(const test_options *options, const dynconv_problem *p, const results *expected,
                          test_random *random, const char *what) {
  results found = results_new(p);
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_dynconv_kernel *kernel = df2_dynconv_kernel_at(i, &features);
    name_case(kernel->isa, p, what);
    compute(&found, kernel, p, 0, p->n_rows, false);
    compare(&found, expected, p);
    const int64_t split = (int64_t)test_random_below(random, (uint32_t)p->n_rows + 1);
    memset(found.convolved, 0xff, (size_t)(3 * found.n) * sizeof(float));
    compute(&found, kernel, p, split, p->n_rows, true);
    compute(&found, kernel, p, 0, split, true);
    compare(&found, expected, p);
  }
  results_free(&found);
}

static results compute_alone(const dynconv_problem *p) {
  results made = results_new(p);
  for (int64_t row = 0; row < p->n_rows; ++row) {
    compute(&made, reference(), p, row, row + 1, false);
  }
  return made;
}

static void check_problem(const test_options *options, const dynconv_problem *p, test_random *random) {
  const uint64_t hash = hash_problem(p);
  name_case("ref", p, "alone");
  results expected = compute_alone(p);
  for (int64_t row = 0; row < p->n_rows; ++row) {
    check_row(p, &expected, row);
  }
  checksum = test_checksum(checksum, expected.convolved, 3 * expected.n);
  check_kernels(options, p, &expected, random, "random");
  test_check(hash_problem(p) == hash, "a kernel wrote to its input");
  results_free(&expected);
}

/* Whole numbers: the convolution is exact in any order of operations. */
static void check_whole(const test_options *options, dynconv_problem *p, test_random *random) {
  dynconv_make_whole(p, random);
  const int64_t n = p->shape.n_embd;
  results found = results_new(p);
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_dynconv_kernel *kernel = df2_dynconv_kernel_at(i, &features);
    name_case(kernel->isa, p, "whole numbers");
    compute(&found, kernel, p, 0, p->n_rows, false);
    for (int64_t at = 0; at < found.n; ++at) {
      const int64_t row = at / n, c = at % n;
      int64_t exact = 0;
      for (int64_t t = 0; t < p->shape.kernel_size && row - t >= 0; ++t) {
        const float *delta = p->side.delta + row * p->side.delta_stride + t * (n / p->shape.group_size);
        const int64_t coefficient =
            (int64_t)p->side.base[t * n + c] + (int64_t)delta[(c - c % p->shape.group_size) / p->shape.group_size];
        exact += coefficient * (int64_t)p->x[(row - t) * n + c];
      }
      if (!test_check(found.convolved[at] == (float)exact, "row %d, channel %d: %g, not %g", (int)row, (int)c,
                      (double)found.convolved[at], (double)exact)) {
        break;
      }
    }
  }
  results_free(&found);
}

static void check_random_problems(const test_options *options) {
  static const int64_t sizes[][2] = {
      {64, 16},  {64, 8},  {96, 32}, {24, 8},   {40, 4},  {65, 5},  {576, 16},  {80, 16},  {128, 64},  {56, 28},
      {72, 12},  {33, 1},  {48, 24}, {104, 8},  {31, 31}, {1, 1},   {15, 3},    {16, 16},  {17, 17},   {192, 48},
      {160, 20}, {144, 6}, {63, 7},  {256, 32}, {36, 4},  {168, 8}, {2560, 32}, {4096, 8}, {6656, 16}, {5120, 40}};
  static const int64_t rows[] = {1, 2, 3, 5, 8, 16, 9, 4, 33, 64};
  const int n_sizes = options->quick ? 26 : 30, n_row_counts = options->quick ? 8 : 10;
  for (int i = 0; i < n_sizes * 8; ++i) {
    const int64_t *size = sizes[i % n_sizes];
    const df2_dynconv_shape shape = {size[0], 1 + i / n_sizes, size[1]};
    test_random random = test_random_for(options->seed, "dynconv", (uint64_t)i);
    dynconv_problem p;
    dynconv_problem_new(&p, &shape, rows[(i + i / n_sizes) % n_row_counts], i % 7 != 3, i % 3 == 1, &random);
    check_problem(options, &p, &random);
    check_whole(options, &p, &random);
    dynconv_problem_free(&p);
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref: %.2f of what is allowed\n", largest_error);
}

/* ------------------------------------------------------------------------------------------------ special problems */

static const df2_dynconv_shape special_shapes[] = {{64, 2, 16}, {64, 3, 8}, {30, 2, 5}, {88, 4, 44}};
#define N_SPECIAL_SHAPES 4
#define SPECIAL_ROWS 6

/* An identity as convolution and rows of one magnitude: their norms are their signs, exactly. */
static void check_signs(const test_options *options, const df2_dynconv_shape *shape, int number) {
  test_random random = test_random_for(options->seed, "signs", (uint64_t)number);
  dynconv_problem p;
  dynconv_problem_new(&p, shape, SPECIAL_ROWS, true, true, &random);
  dynconv_make_whole(&p, &random); /* what is NaN stays so */
  for (int64_t i = 0; i < shape->kernel_size * shape->n_embd; ++i) {
    dynconv_base_of(&p)[i] = i < shape->n_embd ? 0.75f : -0.25f;
  }
  for (int64_t row = 0; row < SPECIAL_ROWS; ++row) {
    for (int64_t tap = 0; tap < dynconv_n_taps(&p, row); ++tap) {
      for (int64_t g = 0; g < shape->n_embd / shape->group_size; ++g) {
        dynconv_delta_of(&p, row, tap)[g] = 0.25f;
      }
    }
  }
  for (int64_t i = 0; i < SPECIAL_ROWS * shape->n_embd; ++i) {
    p.x[i] = test_random_below(&random, 2) == 0 ? 2.0f : -2.0f;
    dynconv_residual_of(&p)[i] = p.x[i] / 2.0f;
  }
  for (int64_t c = 0; c < shape->n_embd; ++c) {
    dynconv_post_norm_of(&p)[c] = 3.0f;
  }
  p.finish.scale = 0.5f;
  p.finish.norm_eps = 0.0f;
  results found = results_new(&p);
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_dynconv_kernel *kernel = df2_dynconv_kernel_at(i, &features);
    name_case(kernel->isa, &p, "signs");
    compute(&found, kernel, &p, 0, SPECIAL_ROWS, false);
    int64_t n_wrong[3] = {0};
    for (int64_t at = 0; at < found.n; ++at) {
      const float normed = p.x[at] / 2.0f * p.finish.norm[at % shape->n_embd];
      n_wrong[0] += found.convolved[at] != p.x[at];
      n_wrong[1] += found.sum[at] != p.x[at]; /* 0.5 (1 + 3), with its sign */
      n_wrong[2] += found.normed[at] != normed;
    }
    test_check(n_wrong[0] + n_wrong[1] + n_wrong[2] == 0, "%d, %d, %d wrong values", (int)n_wrong[0], (int)n_wrong[1],
               (int)n_wrong[2]);
  }
  results_free(&found);
  dynconv_problem_free(&p);
}

/* A NaN in x, at a row and a channel. */
static void check_nan(const test_options *options, const df2_dynconv_shape *shape, int64_t row, int64_t channel) {
  test_random random = test_random_for(options->seed, "nan", (uint64_t)(row * shape->n_embd + channel));
  dynconv_problem p;
  dynconv_problem_new(&p, shape, SPECIAL_ROWS, true, channel % 2 == 0, &random);
  results clean = compute_alone(&p);
  p.x[row * shape->n_embd + channel] = NAN;
  results expected = compute_alone(&p);
  name_case("ref", &p, "NaN");
  int64_t n_wrong = 0;
  for (int64_t at = 0; at < clean.n; ++at) {
    const int64_t i = at / shape->n_embd;
    const bool sees_it = i >= row && i < row + shape->kernel_size;
    const bool is_nan = sees_it && at % shape->n_embd == channel;
    n_wrong += isnan(expected.convolved[at]) != is_nan || (!is_nan && expected.convolved[at] != clean.convolved[at]);
    n_wrong += isnan(expected.sum[at]) != (p.finish.post_norm != NULL ? sees_it : is_nan);
    n_wrong += isnan(expected.normed[at]) != sees_it || (!sees_it && expected.normed[at] != clean.normed[at]);
  }
  test_check(n_wrong == 0, "row %d, channel %d: %d values are NaN or are not, or differ", (int)row, (int)channel,
             (int)n_wrong);
  check_kernels(options, &p, &expected, &random, "NaN");
  results_free(&clean);
  results_free(&expected);
  dynconv_problem_free(&p);
}

/* A row of a residual whose squares leave float32's range: because of one infinity, or all of them (channel < 0). */
static void check_overflow(const test_options *options, const df2_dynconv_shape *shape, int64_t channel) {
  const int64_t row = 2, n = shape->n_embd;
  test_random random = test_random_for(options->seed, "overflow", (uint64_t)(channel + 1));
  dynconv_problem p;
  dynconv_problem_new(&p, shape, SPECIAL_ROWS, true, false, &random);
  for (int64_t c = 0; c < n; ++c) {
    float *residual = dynconv_residual_of(&p) + row * n + c;
    *residual = channel < 0 ? 1e30f : c == channel ? INFINITY : *residual;
  }
  results expected = compute_alone(&p);
  name_case("ref", &p, "overflow");
  int64_t n_wrong = 0;
  for (int64_t c = 0; c < n; ++c) {
    const float normed = expected.normed[row * n + c];
    n_wrong += c == channel ? !isnan(normed) : normed != 0.0f;
    n_wrong += isinf(expected.sum[row * n + c]) != (c == channel);
  }
  test_check(n_wrong == 0, "channel %d: %d wrong values", (int)channel, (int)n_wrong);
  check_kernels(options, &p, &expected, &random, "overflow");
  results_free(&expected);
  dynconv_problem_free(&p);
}

/* Zeros, and values whose squares are zeros, with eps 0: a channel that is not there must not make its sum NaN. */
static void check_underflow(const test_options *options, const df2_dynconv_shape *shape, float value) {
  test_random random = test_random_for(options->seed, "underflow", (uint64_t)shape->n_embd);
  dynconv_problem p;
  dynconv_problem_new(&p, shape, SPECIAL_ROWS, false, true, &random);
  for (int64_t i = 0; i < SPECIAL_ROWS * shape->n_embd; ++i) {
    p.x[i] = value;
  }
  p.finish.norm_eps = 0.0f;
  results expected = compute_alone(&p);
  name_case("ref", &p, "underflow");
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < expected.n; ++i) {
    n_wrong += value == 0.0f ? !isnan(expected.sum[i]) : !isinf(expected.sum[i]);
  }
  test_check(n_wrong == 0, "%g: %d values", (double)value, (int)n_wrong);
  check_kernels(options, &p, &expected, &random, "underflow");
  results_free(&expected);
  dynconv_problem_free(&p);
}

static void check_special_problems(const test_options *options) {
  for (int i = 0; i < N_SPECIAL_SHAPES; ++i) {
    const df2_dynconv_shape *shape = &special_shapes[i];
    const int64_t channels[] = {0, 1, shape->n_embd / 2, shape->n_embd - 1};
    check_signs(options, shape, i);
    for (int64_t row = 0; row < SPECIAL_ROWS; ++row) {
      check_nan(options, shape, row, channels[row % 4]);
    }
    for (int c = 0; c < 4; ++c) {
      check_overflow(options, shape, channels[c]);
    }
    check_overflow(options, shape, -1);
    check_underflow(options, shape, 0.0f);
    check_underflow(options, shape, 1e-30f);
  }
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("dynconv %s\n", df2_dynconv_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_random_problems(&options);
  check_special_problems(&options);
  return test_finish("dynconv");
}
