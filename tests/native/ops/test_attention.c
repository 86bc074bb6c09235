/* Every attention kernel that was compiled and that this CPU runs: all rows together against ref.c with each row alone,
 * bit for bit; ref.c against the definition in double precision; and what kernels must leave alone. With --dispatch:
 * prints which kernel would be chosen. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention_data.h"
#include "harness.h"
#include "isas.h"
#include "ops/attention/attention.h"
#include "ops/common/cpu.h"
#include "watch.h"

/* What memory holds before a kernel writes to it: NaNs, which would show if it read them. */
#define JUNK 0xff

/* Of all rows of a problem. */
typedef struct results {
  int64_t n_spans;
  int32_t n_rows, value_size;
  float *partials; /* [span][row][df2_attention_partial_floats] */
  float *outputs;  /* [row][value size] */
} results;

typedef struct call {
  const df2_attention_kernel *kernel;
  const attention_problem *problem;
  int32_t first_row, n_rows;
  int64_t first_key, last_key;
  float *partials, *total, *out;
  const float *next, *sink;
  void *workspace;
} call;

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static void attend(void *context) {
  const call *c = context;
  const attention_problem *p = c->problem;
  c->kernel->attend(c->partials, &p->params, p->rows + c->first_row, c->n_rows, &p->keys, &p->values, c->first_key,
                    c->last_key, c->workspace);
}

static void merge(void *context) {
  const call *c = context;
  c->kernel->merge(c->total, c->next, c->problem->shape.value_size);
}

static void finish(void *context) {
  const call *c = context;
  c->kernel->finish(c->out, c->total, c->sink, c->problem->shape.value_size);
}

static void watched(void (*body)(void *), call *c, const char *name) {
  const char *broken = test_watched_call(body, c, has_sme);
  test_check(broken == NULL, "%s: %s", name, broken);
}

/* --------------------------------------------------------------------------------------------------------- results */

static size_t partial_floats(const results *r) {
  return df2_attention_partial_floats(r->value_size);
}

/* Without padding, which holds anything. */
static int64_t used_floats(const results *r) {
  return DF2_ATTENTION_O + r->value_size;
}

static float *partial_at(const results *r, int64_t span, int32_t row) {
  return r->partials + (size_t)(span * r->n_rows + row) * partial_floats(r);
}

static float *output_at(const results *r, int32_t row) {
  return r->outputs + (int64_t)row * r->value_size;
}

static results results_new(const attention_problem *p) {
  results r = {.n_rows = p->shape.n_rows, .value_size = p->shape.value_size};
  r.n_spans = (p->shape.n_keys + DF2_ATTENTION_SPAN - 1) / DF2_ATTENTION_SPAN;
  r.partials = malloc((size_t)(r.n_spans * r.n_rows) * partial_floats(&r) * sizeof(float));
  r.outputs = malloc((size_t)r.n_rows * (size_t)r.value_size * sizeof(float));
  return r;
}

static void results_free(results *r) {
  free(r->partials);
  free(r->outputs);
}

static void finish_rows(const results *r, call *c, const test_buffer *totals) {
  /* outputs one float apart: of no particular alignment */
  const int64_t stride = r->value_size + 1;
  test_buffer outputs = test_buffer_new((size_t)(c->n_rows * stride) * sizeof(float), sizeof(float));
  memset(outputs.data, JUNK, outputs.size);
  for (int32_t i = 0; i < c->n_rows; ++i) {
    c->total = (float *)(void *)totals->data + (size_t)i * partial_floats(r);
    c->sink = c->problem->sinks[c->first_row + i];
    c->out = (float *)(void *)outputs.data + i * stride + 1;
    watched(finish, c, "finish");
    memcpy(output_at(r, c->first_row + i), c->out, (size_t)r->value_size * sizeof(float));
    test_check(test_float_bits(c->out[-1]) == UINT32_MAX, "finish wrote before its output");
  }
  test_check(test_buffer_guards_intact(&outputs), "finish wrote outside the outputs");
  test_buffer_free(&outputs);
}

/* Runs a kernel on rows [first_row, first_row + n_rows), in one call per span, as llama.cpp's threads do. */
static void compute(const results *r, const df2_attention_kernel *kernel, const attention_problem *p, int32_t first_row,
                    int32_t n_rows) {
  const size_t n_floats = partial_floats(r);
  const size_t n_bytes = (size_t)n_rows * n_floats * sizeof(float);
  test_buffer workspace = test_buffer_new(df2_attention_workspace_bytes(n_rows, p->keys.size, p->values.size), 64);
  test_buffer partials = test_buffer_new(n_bytes, 64);
  test_buffer totals = test_buffer_new(n_bytes, 64);
  call c = {.kernel = kernel, .problem = p, .first_row = first_row, .n_rows = n_rows, .workspace = workspace.data};
  c.partials = (float *)(void *)partials.data;
  for (int32_t i = 0; i < n_rows; ++i) {
    df2_attention_clear((float *)(void *)totals.data + (size_t)i * n_floats, r->value_size);
  }
  for (int64_t span = 0; span < r->n_spans; ++span) {
    memset(workspace.data, JUNK, workspace.size);
    memset(partials.data, JUNK, partials.size);
    c.first_key = span * DF2_ATTENTION_SPAN;
    c.last_key =
        c.first_key + DF2_ATTENTION_SPAN < p->shape.n_keys ? c.first_key + DF2_ATTENTION_SPAN : p->shape.n_keys;
    watched(attend, &c, "attend");
    for (int32_t i = 0; i < n_rows; ++i) {
      c.next = c.partials + (size_t)i * n_floats;
      c.total = (float *)(void *)totals.data + (size_t)i * n_floats;
      memcpy(partial_at(r, span, first_row + i), c.next, n_floats * sizeof(float));
      watched(merge, &c, "merge");
    }
  }
  finish_rows(r, &c, &totals);
  test_check(test_buffer_guards_intact(&workspace), "attend wrote outside its workspace");
  test_check(test_buffer_guards_intact(&partials), "attend wrote outside the partial results");
  test_check(test_buffer_guards_intact(&totals), "merge or finish wrote outside the total");
  test_buffer_free(&workspace);
  test_buffer_free(&partials);
  test_buffer_free(&totals);
}

/* In partial results, zeros of either sign are the same. */
static int64_t first_unequal(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (a[i] != b[i] && (a[i] == a[i] || b[i] == b[i])) {
      return i;
    }
  }
  return -1;
}

static void compare_row(const results *found, const results *expected, int32_t row) {
  for (int64_t span = 0; span < found->n_spans; ++span) {
    const float *a = partial_at(found, span, row), *b = partial_at(expected, span, row);
    const int64_t at = first_unequal(a, b, used_floats(found));
    test_check(at < 0, "row %d, partial result of span %d, float %d: %a, not %a", (int)row, (int)span, (int)at,
               at < 0 ? 0.0 : (double)a[at], at < 0 ? 0.0 : (double)b[at]);
  }
  const float *a = output_at(found, row), *b = output_at(expected, row);
  const int64_t at = test_first_difference(a, b, found->value_size);
  test_check(at < 0, "row %d, output %d: %a, not %a", (int)row, (int)at, at < 0 ? 0.0 : (double)a[at],
             at < 0 ? 0.0 : (double)b[at]);
}

/* --------------------------------------------------------------------------------------------------------- kernels */

static const df2_attention_kernel *reference(void) {
  return df2_attention_find(0);
}

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_attention_kernel *kernel = df2_attention_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

/* The next kernel to test; *index starts at 0. */
static const df2_attention_kernel *next_kernel(const test_options *options, int32_t *index) {
  uint32_t features;
  const int32_t found = test_isa_next(options, isa_at, *index);
  *index = found + 1;
  return found >= 0 ? df2_attention_kernel_at(found, &features) : NULL;
}

static bool is_reference(const df2_attention_kernel *kernel) {
  return kernel == reference();
}

static void name_case(const attention_problem *p, const char *what) {
  static const char *const masks[] = {"none", "causal", "window", "tiles", "random", "distance"};
  const attention_shape *s = &p->shape;
  test_case("%s: keys %s x %d, values %s x %d, n_rows=%d n_keys=%d, mask %s, softcap %g%s", what,
            attention_type_name(s->key_type), (int)s->key_size, attention_type_name(s->value_type), (int)s->value_size,
            (int)s->n_rows, (int)s->n_keys, masks[s->mask], (double)s->softcap, s->has_sinks ? ", sinks" : "");
}

/* -------------------------------------------------------------------------------------------------- random problems */

static uint64_t hash_buffer(uint64_t hash, const test_buffer *buffer) {
  for (size_t i = 0; i < buffer->size; ++i) {
    hash = (hash ^ buffer->data[i]) * 0x100000001b3u;
  }
  return hash;
}

static uint64_t hash_problem(const attention_problem *p) {
  uint64_t hash = hash_buffer(1, &p->key_memory);
  hash = hash_buffer(hash, &p->value_memory);
  hash = hash_buffer(hash, &p->query_memory);
  return hash_buffer(hash, &p->mask_memory);
}

static bool sees_nothing(const attention_problem *p, int32_t row) {
  const uint16_t *mask = p->rows[row].mask;
  for (int64_t key = 0; key < p->shape.n_keys; ++key) {
    if (mask == NULL || mask[key] != ATTENTION_MASKED) {
      return false;
    }
  }
  return true;
}

/* Error of a row, relative to its length; the length of values that differ cancels in sums, so with many keys a float32
 * result has fewer right digits than its summands. */
static void check_error(const attention_problem *p, const results *found, int32_t row, double allowed) {
  static double exact[DF2_ATTENTION_MAX_SIZE];
  df2_attention_ref_f64(exact, &p->params, &p->rows[row], &p->keys, &p->values, p->shape.n_keys, p->sinks[row]);
  const float *out = output_at(found, row);
  if (sees_nothing(p, row)) {
    int n_zeros = 0;
    for (int32_t i = 0; i < p->shape.value_size; ++i) {
      n_zeros += test_float_bits(out[i]) == 0 && exact[i] == 0.0;
    }
    test_check(n_zeros == p->shape.value_size, "row %d sees no key, but not all outputs are 0", (int)row);
    return;
  }
  double length = 0.0, error = 0.0;
  for (int32_t i = 0; i < p->shape.value_size; ++i) {
    length += exact[i] * exact[i];
    error += (exact[i] - (double)out[i]) * (exact[i] - (double)out[i]);
  }
  error = sqrt(error / fmax(length, (double)FLT_MIN));
  largest_error = fmax(largest_error, error / allowed);
  test_check(error <= allowed, "row %d: relative error %g, allowed %g", (int)row, error, allowed);
}

/* A score's error, and so its weight's relative one, grows with it. */
static double allowed_error(const attention_problem *p) {
  return (double)FLT_EPSILON * (5.0 + attention_largest_score(p) / 3.0);
}

/* Beside a sink far above all scores, weights are exponentials of large differences, which are rounded. */
static double allowed_by_sink(const attention_problem *p, int32_t row) {
  return p->sinks[row] != NULL ? (double)FLT_EPSILON * fmax((double)*p->sinks[row], 0.0) : 0.0;
}

static void check_rows(const attention_problem *p, const results *expected, const df2_attention_kernel *kernel,
                       int32_t first, int32_t n) {
  results found = results_new(p);
  compute(&found, kernel, p, first, n);
  for (int32_t row = first; row < first + n; ++row) {
    compare_row(&found, expected, row);
  }
  results_free(&found);
}

static void check_problem(const test_options *options, const attention_problem *p) {
  const uint64_t hash = hash_problem(p);
  const int32_t n = p->shape.n_rows;
  results expected = results_new(p);
  name_case(p, "ref");
  const double allowed = allowed_error(p);
  for (int32_t row = 0; row < n; ++row) {
    compute(&expected, reference(), p, row, 1);
    check_error(p, &expected, row, allowed + allowed_by_sink(p, row));
  }
  checksum = test_checksum(checksum, expected.outputs, (int64_t)n * p->shape.value_size);
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    name_case(p, kernel->isa);
    check_rows(p, &expected, kernel, 0, n);
    if (n > 1 && !options->quick && !is_reference(kernel)) {
      check_rows(p, &expected, kernel, 1, n - 1);
      check_rows(p, &expected, kernel, 0, 1);
      check_rows(p, &expected, kernel, n - 1, 1);
    }
  }
  test_check(hash_problem(p) == hash, "a kernel wrote to its input");
  results_free(&expected);
}

static bool has_size(df2_attention_type type, int32_t size) {
  return df2_attention_block_bytes(type) == 0 || size % DF2_ATTENTION_BLOCK == 0;
}

/* Two types with two sizes; the other properties take turns. */
static void check_random_problem(const test_options *options, df2_attention_type key_type,
                                 df2_attention_type value_type, const int32_t *size, int i) {
  static const int32_t rows[] = {1, 2, 3, 5, 6, 7, 12, 64, 24};
  static const int64_t keys[] = {1, 63, 64, 65, 255, 256, 257, 700};
  attention_shape shape = {.key_type = key_type, .value_type = value_type, .key_size = size[0], .value_size = size[1]};
  shape.n_rows = rows[i % (options->quick ? 8 : 9)];
  shape.n_keys = keys[(i + i / 16) % (options->quick ? 7 : 8)];
  shape.mask = (attention_mask)((i + i / 7) % ATTENTION_N_MASKS);
  shape.softcap = i % 5 == 2 ? 30.0f : 0.0f;
  shape.has_sinks = i % 3 == 1;
  test_random random = test_random_for(options->seed, "attention", (uint64_t)i);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  check_problem(options, &p);
  attention_problem_free(&p);
}

/* All pairs of types with all sizes that both can have; a third of them for emulators. */
static void check_random_problems(const test_options *options) {
  static const int32_t sizes[][2] = {{16, 16},   {64, 64},   {100, 20},  {96, 96},   {33, 7},    {128, 128},
                                     {192, 192}, {256, 256}, {576, 512}, {192, 128}, {64, 96},   {80, 80},
                                     {120, 120}, {20, 100},  {8, 8},     {1, 9},     {135, 265}, {32, 72}};
  const int n_pairs = DF2_ATTENTION_N_TYPES * DF2_ATTENTION_N_TYPES;
  const int n_sizes = options->quick ? 5 : 18;
  int number = 0;
  for (int i = 0; i < n_sizes * n_pairs; ++i) {
    const int32_t *size = sizes[i / n_pairs];
    const df2_attention_type key_type = (df2_attention_type)(i % n_pairs / DF2_ATTENTION_N_TYPES);
    const df2_attention_type value_type = (df2_attention_type)(i % DF2_ATTENTION_N_TYPES);
    if (has_size(key_type, size[0]) && has_size(value_type, size[1]) &&
        (!options->quick || ((int)key_type + (int)value_type + i / n_pairs) % 3 == 0)) {
      check_random_problem(options, key_type, value_type, size, number++);
    }
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref: %.2f of what is allowed\n", largest_error);
}

/* ------------------------------------------------------------------------------------------------ special problems */

/* Keys that are masked with minus infinity at the end change nothing, whatever finite values they have. */
static void check_padding(const test_options *options, df2_attention_type type, int64_t n_keys, int64_t n_padded) {
  const attention_shape shape = {type, type, 64, 64, 7, n_padded, ATTENTION_MASK_RANDOM, 0.0f, false};
  test_random random = test_random_for(options->seed, "padding", (uint64_t)(n_keys * 4 + (int64_t)type));
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  for (int64_t key = n_keys; key < n_padded; ++key) {
    attention_set_first(&p.keys, key, 32768.0f);
    attention_set_first(&p.values, key, -32768.0f);
    for (int32_t row = 0; row < shape.n_rows; ++row) {
      attention_mask_of(&p, row)[key] = ATTENTION_MASKED;
    }
  }
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    test_case("%s: %s, %d keys padded to %d", kernel->isa, attention_type_name(type), (int)n_keys, (int)n_padded);
    p.shape.n_keys = n_padded;
    results padded = results_new(&p);
    compute(&padded, kernel, &p, 0, shape.n_rows);
    p.shape.n_keys = n_keys;
    results expected = results_new(&p);
    compute(&expected, kernel, &p, 0, shape.n_rows);
    const int64_t at = test_first_difference(padded.outputs, expected.outputs, shape.n_rows * shape.value_size);
    test_check(at < 0, "output %d of row %d differs", (int)(at % shape.value_size), (int)(at / shape.value_size));
    results_free(&padded);
    results_free(&expected);
  }
  attention_problem_free(&p);
}

enum { NEEDLE_ROWS = 7 };

/* Seven rows that see different keys around the needle; whether this one sees it. */
static bool mask_for_needle(uint16_t *mask, int32_t row, int64_t needle, int64_t n_keys) {
  const int64_t first[NEEDLE_ROWS] = {0, 0, needle, needle + 1, needle, 0, 0};
  const int64_t last[NEEDLE_ROWS] = {needle, needle + 1, n_keys, n_keys, needle + 1, 0, n_keys};
  for (int64_t key = 0; key < n_keys; ++key) {
    mask[key] = key >= first[row] && key < last[row] ? 0 : ATTENTION_MASKED;
  }
  return first[row] <= needle && needle < last[row];
}

/* One key has so large a score that a row which sees it gets its value, exactly; one key too many or too few anywhere
 * shows. */
static void check_needle(const test_options *options, df2_attention_type key_type, df2_attention_type value_type,
                         int64_t needle) {
  const attention_shape shape = {key_type, value_type, 64, 96, NEEDLE_ROWS, 321, ATTENTION_MASK_CAUSAL, 0.0f, false};
  test_random random = test_random_for(options->seed, "needle", (uint64_t)needle);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  bool sees_needle[NEEDLE_ROWS];
  for (int32_t row = 0; row < NEEDLE_ROWS; ++row) {
    attention_query_of(&p, row)[0] = 4.0f;
    sees_needle[row] = mask_for_needle(attention_mask_of(&p, row), row, needle, shape.n_keys);
  }
  const double allowed = allowed_error(&p);
  attention_set_first(&p.keys, needle, 32768.0f);
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    test_case("%s: keys %s, values %s, needle at %d", kernel->isa, attention_type_name(key_type),
              attention_type_name(value_type), (int)needle);
    results found = results_new(&p);
    compute(&found, kernel, &p, 0, NEEDLE_ROWS);
    for (int32_t row = 0; row < NEEDLE_ROWS; ++row) {
      if (!sees_needle[row]) {
        check_error(&p, &found, row, allowed);
        continue;
      }
      int n_equal = 0;
      for (int32_t d = 0; d < shape.value_size; ++d) {
        n_equal += output_at(&found, row)[d] == (float)attention_element(&p.values, needle, d);
      }
      test_check(n_equal == shape.value_size, "row %d sees the needle, but only %d outputs are its value's", (int)row,
                 n_equal);
    }
    results_free(&found);
  }
  attention_problem_free(&p);
}

/* A query with a NaN gets NaNs, and no other row does. */
static void check_nan(const test_options *options) {
  const attention_shape shape = {
      DF2_ATTENTION_F16, DF2_ATTENTION_F16, 64, 64, 8, 300, ATTENTION_MASK_RANDOM, 0.0f, false};
  test_random random = test_random_for(options->seed, "nan", 0);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  results expected = results_new(&p);
  compute(&expected, reference(), &p, 0, shape.n_rows);
  attention_query_of(&p, 3)[5] = NAN;
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    test_case("%s: a query with a NaN", kernel->isa);
    results found = results_new(&p);
    compute(&found, kernel, &p, 0, shape.n_rows);
    for (int32_t row = 0; row < shape.n_rows; ++row) {
      if (row != 3) {
        compare_row(&found, &expected, row);
      }
    }
    int n_nan = 0;
    for (int32_t d = 0; d < shape.value_size; ++d) {
      n_nan += isnan(output_at(&found, 3)[d]) != 0;
    }
    test_check(n_nan == shape.value_size, "only %d of its outputs are NaN", n_nan);
    results_free(&found);
  }
  results_free(&expected);
  attention_problem_free(&p);
}

/* Tiles that no row sees are left out, whatever they hold. */
static void check_skipped_tiles(const test_options *options) {
  const attention_shape shape = {DF2_ATTENTION_F32,      DF2_ATTENTION_F32,     16,   16,   7,
                                 7 * DF2_ATTENTION_TILE, ATTENTION_MASK_CAUSAL, 0.0f, false};
  test_random random = test_random_for(options->seed, "skipped", 0);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  for (int64_t key = 0; key < shape.n_keys; ++key) {
    if (key / DF2_ATTENTION_TILE % 3 == 1) {
      attention_set_first(&p.keys, key, NAN);
      attention_set_first(&p.values, key, NAN);
      for (int32_t row = 0; row < shape.n_rows; ++row) {
        attention_mask_of(&p, row)[key] = ATTENTION_MASKED;
      }
    }
  }
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    test_case("%s: skipped tiles", kernel->isa);
    results found = results_new(&p);
    compute(&found, kernel, &p, 0, shape.n_rows);
    for (int32_t j = 0; j < shape.n_rows * shape.value_size; ++j) {
      test_check(isfinite(found.outputs[j]), "output %d is %g", (int)j, (double)found.outputs[j]);
    }
    results_free(&found);
  }
  attention_problem_free(&p);
}

/* A row's zeros have the same sign whether or not others, which see more tiles, are computed with it. */
static void check_zero_signs(const test_options *options, df2_attention_type type) {
  const int64_t unseen = 4 * DF2_ATTENTION_TILE, small = 5 * DF2_ATTENTION_TILE, needle = small + 1;
  const attention_shape shape = {type, type, 16, 16, 5, 5 * DF2_ATTENTION_TILE + 32, ATTENTION_MASK_CAUSAL,
                                 0.0f, false};
  test_random random = test_random_for(options->seed, "zeros", 0);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  /* In the second span, the first row sees the last tile only: a product too small for a float, so -0, and others of
   * -0. They turn the first span's result, which is negative, to -0. A tile that only other rows see adds +0. */
  for (int64_t key = 0; key < shape.n_keys; ++key) {
    attention_set_first(&p.keys, key, key == needle ? 256.0f : key == small ? 192.0f : 1.0f);
    attention_set_first(&p.values, key, key == small ? -1e-30f : key > small ? -0.0f : -1.0f);
    for (int32_t row = 0; row < shape.n_rows; ++row) {
      attention_query_of(&p, row)[0] = 4.0f;
      attention_mask_of(&p, row)[key] = row == 0 && key >= unseen && key < small ? ATTENTION_MASKED : 0;
    }
  }
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    test_case("%s: signs of zeros, %s", kernel->isa, attention_type_name(type));
    results alone = results_new(&p), among = results_new(&p);
    compute(&alone, kernel, &p, 0, 1);
    compute(&among, kernel, &p, 0, shape.n_rows);
    test_check(test_first_difference(alone.outputs, among.outputs, shape.value_size) < 0, "%g alone, %g among others",
               (double)alone.outputs[0], (double)among.outputs[0]);
    results_free(&alone);
    results_free(&among);
  }
  attention_problem_free(&p);
}

/* Two keys, the scores of which are 0 and any f16 between -87 and 0: the second one's weight is the exponential. */
static void check_exponential(const test_options *options) {
  const attention_shape shape = {
      DF2_ATTENTION_F32, DF2_ATTENTION_F32, 16, 16, 1, 2, ATTENTION_MASK_RANDOM, 0.0f, false};
  const uint16_t minus_87 = 0xd570;
  test_random random = test_random_for(options->seed, "exponential", 0);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  for (int64_t key = 0; key < 2; ++key) {
    attention_set_first(&p.keys, key, 0.0f);
    attention_set_first(&p.values, key, (float)key);
  }
  uint16_t *mask = attention_mask_of(&p, 0);
  mask[0] = 0;
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = next_kernel(options, &i)) != NULL;) {
    double largest = 0.0;
    for (uint16_t half = 0x8000; half <= minus_87; half += options->quick ? 173 : 13) {
      mask[1] = half;
      test_case("%s: exponential of the f16 %04x", kernel->isa, half);
      double exact[16];
      results found = results_new(&p);
      compute(&found, kernel, &p, 0, 1);
      df2_attention_ref_f64(exact, &p.params, &p.rows[0], &p.keys, &p.values, 2, NULL);
      largest = fmax(largest, fabs((double)found.outputs[0] / exact[0] - 1.0));
      results_free(&found);
    }
    /* exp's own error, that of the sum, the quotient and the product */
    test_check(largest < 2e-7 + 1.5 * (double)FLT_EPSILON, "relative error of an exponential: %g", largest);
  }
  attention_problem_free(&p);
}

/* Vectors of more elements than any model has. */
static void check_large_sizes(const test_options *options) {
  const attention_shape shape = {
      DF2_ATTENTION_F16, DF2_ATTENTION_F32, 2050, 1030, 7, 65, ATTENTION_MASK_CAUSAL, 0.0f, false};
  test_random random = test_random_for(options->seed, "large", 0);
  attention_problem p;
  attention_problem_new(&p, &shape, &random);
  check_problem(options, &p);
  attention_problem_free(&p);
}

static void check_special_problems(const test_options *options) {
  static const int64_t needles[] = {0, 320, 63, 64, 255, 256, 1, 62, 65, 127, 128, 254, 257, 319};
  const int n_needles = options->quick ? 6 : 14;
  for (int i = 0; i < n_needles; ++i) {
    for (int type = 0; type < DF2_ATTENTION_N_TYPES; ++type) {
      check_needle(options, (df2_attention_type)type, (df2_attention_type)((type + i) % DF2_ATTENTION_N_TYPES),
                   needles[i]);
    }
  }
  for (int type = 0; type < DF2_ATTENTION_N_TYPES; ++type) {
    check_padding(options, (df2_attention_type)type, 100, 128);
    check_padding(options, (df2_attention_type)type, 130, 512);
    check_padding(options, (df2_attention_type)type, 256, 300);
  }
  check_large_sizes(options);
  check_zero_signs(options, DF2_ATTENTION_F32); /* not f16, which has no values as small as that needs */
  check_zero_signs(options, DF2_ATTENTION_BF16);
  check_skipped_tiles(options);
  check_nan(options);
  check_exponential(options);
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("attention %s\n", df2_attention_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_random_problems(&options);
  check_special_problems(&options);
  return test_finish("attention");
}
