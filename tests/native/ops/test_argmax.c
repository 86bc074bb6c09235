/* Every argmax kernel that was compiled and that this CPU runs, against a plain sort. With --dispatch: prints which
 * kernel would be chosen. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"
#include "isas.h"
#include "logits_data.h"
#include "ops/argmax/argmax.h"
#include "ops/common/cpu.h"
#include "watch.h"

typedef struct call {
  const df2_argmax_kernel *kernel;
  const float *values;
  int64_t n, found;
} call;

static bool has_sme;

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_argmax_kernel *kernel = df2_argmax_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

static void argmax(void *context) {
  call *c = context;
  c->found = c->kernel->argmax(c->values, c->n);
}

static void check_values(const test_options *options, const float *values, int64_t n, int64_t expected,
                         const char *what) {
  uint32_t features;
  const uint64_t input = test_checksum(0, values, n);
  call c = {.values = values, .n = n};
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    c.kernel = df2_argmax_kernel_at(i, &features);
    test_case("%s: %s, n=%" PRId64, c.kernel->isa, what, n);
    const char *broken = test_watched_call(argmax, &c, has_sme);
    test_check(broken == NULL, "%s", broken);
    test_check(c.found == expected, "%" PRId64 ", not %" PRId64, c.found, expected);
  }
  test_check(test_checksum(0, values, n) == input, "the input has changed");
}

/* Values end where a page does, so sizes decide how they are aligned. */
static void check_patterns(const test_options *options) {
  static const int64_t sizes[] = {1,   2,   3,   7,   8,   9,   15,  16,  17,   31,   33,    63,    64,
                                  65,  127, 129, 255, 256, 257, 271, 511, 512,  513,  1000,  1024,  1027,
                                  767, 768, 769, 783, 800, 831, 832, 833, 2500, 4099, 49152, 151936};
  const int n_sizes = (int)(sizeof sizes / sizeof sizes[0]) - (options->quick ? 2 : 0);
  for (int i = 0; i < n_sizes; ++i) {
    const int64_t n = sizes[i];
    test_buffer memory = test_buffer_new((size_t)n * sizeof(float), sizeof(float));
    int32_t *order = malloc((size_t)n * sizeof(int32_t));
    float *values = (float *)(void *)memory.data;
    for (int pattern = 0; pattern < LOGITS_N_PATTERNS; ++pattern) {
      test_random random = test_random_for(options->seed, logits_pattern_name((logits_pattern)pattern), (uint64_t)n);
      logits_fill(values, n, (logits_pattern)pattern, &random);
      logits_sort(order, values, n);
      check_values(options, values, n, order[0], logits_pattern_name((logits_pattern)pattern));
    }
    free(order);
    test_buffer_free(&memory);
  }
}

/* The largest value everywhere in turn, with NaNs around it, a rival just below before it and an equal one after it. */
static void check_positions(const test_options *options, float largest, float rival, const char *what) {
  enum { N = 2 * 256 + 77 };
  test_buffer memory = test_buffer_new(N * sizeof(float), sizeof(float));
  float *values = (float *)(void *)memory.data;
  test_random random = test_random_for(options->seed, what, 0);
  for (int64_t at = 0; at < N; ++at) {
    for (int64_t i = 0; i < N; ++i) {
      values[i] = i < at && test_random_below(&random, 10) == 0 ? rival : -INFINITY;
    }
    values[at] = largest;
    if (at > 0) {
      values[at - 1] = NAN;
    }
    if (at + 1 < N) {
      values[at + 1] = NAN;
      values[at + 1 + test_random_below(&random, (uint32_t)(N - at - 1))] = largest;
    }
    check_values(options, values, N, at, what);
  }
  test_buffer_free(&memory);
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("argmax %s\n", df2_argmax_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_patterns(&options);
  check_positions(&options, 1.0f, nextafterf(1.0f, 0.0f), "largest is 1");
  check_positions(&options, -0.0f, test_float_of_bits(0x80000001u), "largest is -0");
  check_positions(&options, INFINITY, 1.0f, "largest is infinite");
  return test_finish("argmax");
}
