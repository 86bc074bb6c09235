/* Every short convolution that was compiled and that this CPU runs: all tokens and channels together, and split,
 * against ref.c with each token alone, bit for bit; ref.c against the definition in double precision; and what kernels
 * must leave alone. With --dispatch: prints which kernel would be chosen. */
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
#include "ops/ssm_conv/ssm_conv.h"
#include "watch.h"

/* Floats between the outputs of two tokens that belong to nobody. */
#define GAP 3

typedef struct problem {
  int32_t size;
  int64_t n_channels, n_tokens, row_floats; /* row_floats: of x */
  float *x, *weights;
} problem;

/* Some tokens and channels of a problem. */
typedef struct part {
  df2_range tokens, channels;
} part;

typedef struct call {
  const df2_ssm_conv_kernel *kernel;
  df2_ssm_conv conv;
  float *out;
  df2_range channels;
} call;

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static void run(void *context) {
  const call *c = context;
  c->kernel->run(c->out, &c->conv, c->channels.begin, c->channels.end);
}

/* -------------------------------------------------------------------------------------------------------- problems */

static float *random_floats_new(int64_t n, float magnitude, test_random *random) {
  float *made = malloc((size_t)n * sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    made[i] = test_random_float(random) * magnitude;
  }
  return made;
}

static problem problem_new(int32_t size, int64_t n_channels, int64_t n_tokens, test_random *random) {
  problem p = {size, n_channels, n_tokens, size - 1 + n_tokens, NULL, NULL};
  p.x = random_floats_new(n_channels * p.row_floats, 4.0f, random);
  p.weights = random_floats_new(n_channels * size, 1.5f, random);
  return p;
}

static void problem_free(problem *p) {
  free(p->x);
  free(p->weights);
}

static void name_case(const char *isa, const problem *p, const char *what) {
  test_case("%s: %s, size=%d n_channels=%d n_tokens=%d", isa, what, (int)p->size, (int)p->n_channels, (int)p->n_tokens);
}

/* ----------------------------------------------------------------------------------------------------------- calls */

static float *floats_of(const test_buffer *buffer) {
  return (float *)(void *)buffer->data;
}

/* Some columns of the rows of a range, which end where the buffer does; the rows before them are NaN. */
static test_buffer part_new(const float *rows, int64_t row_floats, df2_range range, df2_range columns) {
  const int64_t n = columns.end - columns.begin;
  test_buffer made = test_buffer_new((size_t)(range.end * n) * sizeof(float), sizeof(float));
  memset(made.data, 0xff, made.size);
  for (int64_t row = range.begin; row < range.end; ++row) {
    memcpy(floats_of(&made) + row * n, rows + row * row_floats + columns.begin, (size_t)n * sizeof(float));
  }
  return made;
}

/* Computes a part, and takes it from the output, of which nothing else may have been written. */
static void compute(float *results, const df2_ssm_conv_kernel *kernel, const problem *p, part of) {
  const int64_t n_tokens = of.tokens.end - of.tokens.begin, stride = p->n_channels + GAP;
  test_buffer x = part_new(p->x, p->row_floats, of.channels, (df2_range){of.tokens.begin, of.tokens.end + p->size - 1});
  test_buffer weights = part_new(p->weights, p->size, of.channels, (df2_range){0, p->size});
  const int64_t n_out = (n_tokens - 1) * stride + of.channels.end;
  test_buffer out = test_buffer_new((size_t)n_out * sizeof(float), sizeof(float));
  memset(out.data, 0xff, out.size);
  call c = {kernel, {floats_of(&x), floats_of(&weights), p->size, n_tokens, stride}, floats_of(&out), of.channels};
  const char *broken = test_watched_call(run, &c, has_sme);
  test_check(broken == NULL, "%s", broken);
  int64_t n_changed = 0;
  for (int64_t i = 0; i < n_out; ++i) {
    const bool is_wanted = i % stride >= of.channels.begin && i % stride < of.channels.end;
    n_changed += !is_wanted && test_float_bits(floats_of(&out)[i]) != UINT32_MAX;
    if (is_wanted) {
      results[(of.tokens.begin + i / stride) * p->n_channels + i % stride] = floats_of(&out)[i];
    }
  }
  test_check(n_changed == 0 && test_buffer_guards_intact(&out), "wrote beside its outputs");
  test_check(test_buffer_guards_intact(&x) && test_buffer_guards_intact(&weights), "wrote beside its inputs");
  test_buffer_free(&x);
  test_buffer_free(&weights);
  test_buffer_free(&out);
}

/* By ref.c, each token alone. */
static float *compute_alone(const problem *p) {
  float *made = malloc((size_t)(p->n_tokens * p->n_channels) * sizeof(float));
  name_case("ref", p, "alone");
  for (int64_t token = 0; token < p->n_tokens; ++token) {
    compute(made, df2_ssm_conv_find(0), p, (part){{token, token + 1}, {0, p->n_channels}});
  }
  return made;
}

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_ssm_conv_kernel *kernel = df2_ssm_conv_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

/* Whether any kernel, any number of threads that share the channels, and any number of calls gives the same bits. */
static void check_kernels(const test_options *options, const problem *p, const float *expected, const char *what) {
  const int64_t n = p->n_tokens * p->n_channels;
  float *found = malloc((size_t)n * sizeof(float));
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_ssm_conv_kernel *kernel = df2_ssm_conv_kernel_at(i, &features);
    name_case(kernel->isa, p, what);
    for (int64_t n_parts = 1; n_parts <= 3; ++n_parts) {
      memset(found, 0xff, (size_t)n * sizeof(float));
      for (int64_t at = n_parts * n_parts - 1; at >= 0; --at) {
        const part of = {df2_split(p->n_tokens, at / n_parts, n_parts),
                         df2_split(p->n_channels, at % n_parts, n_parts)};
        if (of.tokens.begin < of.tokens.end && of.channels.begin < of.channels.end) {
          compute(found, kernel, p, of);
        }
      }
      const int64_t wrong = test_first_difference(found, expected, n);
      test_check(wrong < 0, "in %d parts: token %d, channel %d: %a, not %a", (int)(n_parts * n_parts),
                 (int)(wrong / p->n_channels), (int)(wrong % p->n_channels), wrong < 0 ? 0.0 : (double)found[wrong],
                 wrong < 0 ? 0.0 : (double)expected[wrong]);
    }
  }
  free(found);
}

/* ------------------------------------------------------------------------------------------------- random problems */

/* Each of the additions rounds a sum once, of no more than the products' magnitudes. */
static void check_against_definition(const problem *p, const float *found) {
  for (int64_t i = 0; i < p->n_tokens * p->n_channels; ++i) {
    const int64_t channel = i % p->n_channels;
    const float *x = p->x + channel * p->row_floats + i / p->n_channels;
    double sum = 0.0, magnitude = 0.0;
    for (int32_t k = 0; k < p->size; ++k) {
      const double product = (double)x[k] * (double)p->weights[channel * p->size + k];
      sum += product;
      magnitude += fabs(product);
    }
    const double allowed = magnitude * p->size * (double)FLT_EPSILON / 2.0 * 1.01 + (double)FLT_MIN;
    const double error = fabs((double)found[i] - sum) / allowed;
    largest_error = fmax(largest_error, error);
    test_check(error <= 1.0, "output %d: %.9g, not %.9g", (int)i, (double)found[i], sum);
  }
}

static void check_random_problems(const test_options *options) {
  static const int64_t n_channels[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 64, 100};
  static const int64_t n_tokens[] = {1, 2, 3, 4, 5, 8, 13, 16, 31, 32, 33, 70};
  const int n_problems = options->quick ? 100 : 14 * 12 * 2;
  for (int i = 0; i < n_problems; ++i) {
    test_random random = test_random_for(options->seed, "ssm_conv", (uint64_t)i);
    const int32_t sizes[] = {4, 3, 4, 1 + (int32_t)test_random_below(&random, DF2_SSM_CONV_MAX_SIZE)};
    problem p = problem_new(sizes[i % 4], n_channels[i % 14], n_tokens[i / 2 % 12], &random);
    float *expected = compute_alone(&p);
    check_against_definition(&p, expected);
    checksum = test_checksum(checksum, expected, p.n_tokens * p.n_channels);
    check_kernels(options, &p, expected, "random");
    free(expected);
    problem_free(&p);
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref: %.2f of what is allowed\n", largest_error);
}

/* ------------------------------------------------------------------------------------------------ special problems */

/* What is no number stays within its channel, and the outputs that are made of it. */
static void check_nan(const test_options *options, int32_t size, float value) {
  const int64_t channel = 12, at = 9;
  test_random random = test_random_for(options->seed, "nan", (uint64_t)size);
  problem p = problem_new(size, 21, 18, &random);
  p.x[channel * p.row_floats + at] = value;
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < p.n_tokens * p.n_channels; ++i) {
    const int64_t token = i / p.n_channels;
    const bool is_affected = i % p.n_channels == channel && token <= at && token + size > at;
    n_wrong += (isfinite(expected[i]) != 0) == is_affected;
  }
  test_check(n_wrong == 0, "size %d: %d wrong values", (int)size, (int)n_wrong);
  check_kernels(options, &p, expected, "no number");
  free(expected);
  problem_free(&p);
}

/* Sums begin with a zero that has no sign. */
static void check_zeros(const test_options *options) {
  test_random random = test_random_for(options->seed, "zeros", 0);
  problem p = problem_new(4, 19, 7, &random);
  for (int64_t i = 0; i < p.n_channels * p.row_floats; ++i) {
    p.x[i] = i % 3 == 0 ? 0.0f : -0.0f;
  }
  float *expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int64_t i = 0; i < p.n_tokens * p.n_channels; ++i) {
    n_wrong += test_float_bits(expected[i]) != 0;
  }
  test_check(n_wrong == 0, "zeros: %d wrong values", (int)n_wrong);
  check_kernels(options, &p, expected, "zeros");
  free(expected);
  problem_free(&p);
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("ssm_conv %s\n", df2_ssm_conv_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_random_problems(&options);
  for (int32_t size = 1; size <= DF2_SSM_CONV_MAX_SIZE; ++size) {
    check_nan(&options, size, NAN);
    check_nan(&options, size, INFINITY);
  }
  check_zeros(&options);
  return test_finish("ssm_conv");
}
