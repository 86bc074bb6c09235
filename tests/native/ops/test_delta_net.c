/* Every delta net kernel that was compiled and that this CPU runs: all tokens together, and split, all rows, and some,
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
#include "ops/delta_net/delta_net.h"
#include "watch.h"

#define MAX_TOKENS 40

/* Vectors of all tokens lie behind each other; every buffer ends with the last byte it needs. */
typedef struct problem {
  df2_delta_params params;
  int32_t n_tokens;
  df2_delta_token tokens[MAX_TOKENS]; /* without outputs */
  test_buffer state, queries, keys, values, gates;
} problem;

/* What a problem comes to. */
typedef struct results {
  float *states;  /* [n_tokens + 1][size][size]: before the first token, after it, ... */
  float *outputs; /* [n_tokens][size] */
} results;

/* Some tokens and rows of a problem. */
typedef struct part {
  int32_t first_token, n_tokens;
  int32_t n_stored;
  df2_range rows;
} part;

typedef enum storing { STORE_SEPARATE, STORE_IN_PLACE, STORE_NOTHING } storing;

typedef struct call {
  const df2_delta_net_kernel *kernel;
  const problem *problem;
  float *state_out;
  const float *state_in;
  const df2_delta_token *tokens;
  part part;
  void *workspace;
} call;

static bool has_sme;
static uint64_t checksum;
static double largest_error; /* of ref.c, in units of what is allowed */

static void run(void *context) {
  const call *c = context;
  c->kernel->run(c->state_out, c->state_in, &c->problem->params, c->tokens, c->part.n_tokens, c->part.n_stored,
                 (int32_t)c->part.rows.begin, (int32_t)c->part.rows.end, c->workspace);
}

/* -------------------------------------------------------------------------------------------------------- problems */

static float *floats_of(const test_buffer *buffer) {
  return (float *)(void *)buffer->data;
}

static test_buffer floats_new(int64_t n) {
  return test_buffer_new((size_t)n * sizeof(float), sizeof(float));
}

static float *random_floats_new(test_buffer *buffer, int64_t n, float magnitude, test_random *random) {
  *buffer = floats_new(n);
  for (int64_t i = 0; i < n; ++i) {
    floats_of(buffer)[i] = test_random_float(random) * magnitude;
  }
  return floats_of(buffer);
}

/* Ordinary values: keys and queries of length 1 about, gates that keep much or a little, or all or nothing. */
static void problem_new(problem *made, int32_t size, int32_t n_tokens, bool gate_is_vector, test_random *random) {
  memset(made, 0, sizeof(*made));
  made->params = (df2_delta_params){size, gate_is_vector, 1.0f / sqrtf((float)size)};
  made->n_tokens = n_tokens;
  const float of_length_1 = sqrtf(3.0f / (float)size);
  const int32_t gate_size = gate_is_vector ? size : 1;
  random_floats_new(&made->state, (int64_t)size * size, 1.0f, random);
  const float *queries = random_floats_new(&made->queries, (int64_t)n_tokens * size, of_length_1, random);
  const float *keys = random_floats_new(&made->keys, (int64_t)n_tokens * size, of_length_1, random);
  const float *values = random_floats_new(&made->values, (int64_t)n_tokens * size, 1.0f, random);
  float *gates = random_floats_new(&made->gates, (int64_t)n_tokens * gate_size, 1.0f, random);
  for (int64_t i = 0; i < (int64_t)n_tokens * gate_size; ++i) {
    const uint32_t kind = test_random_below(random, 12);
    gates[i] = kind == 0 ? 0.0f : kind == 1 ? -100.0f : kind == 2 ? 10.0f * gates[i] - 10.0f : gates[i] - 1.0f;
  }
  for (int32_t t = 0; t < n_tokens; ++t) {
    const int64_t at = (int64_t)t * size;
    const bool has_query = test_random_below(random, 5) != 0;
    const float beta = test_random_float(random) * 0.5f + 0.5f;
    made->tokens[t] = (df2_delta_token){has_query ? queries + at : NULL, keys + at, values + at,
                                        gates + (int64_t)t * gate_size,  beta,      NULL};
  }
}

static void problem_free(problem *p) {
  test_buffer_free(&p->state);
  test_buffer_free(&p->queries);
  test_buffer_free(&p->keys);
  test_buffer_free(&p->values);
  test_buffer_free(&p->gates);
}

static uint64_t hash_problem(const problem *p) {
  const test_buffer *buffers[] = {&p->state, &p->queries, &p->keys, &p->values, &p->gates};
  uint64_t hash = 1;
  for (size_t b = 0; b < sizeof buffers / sizeof buffers[0]; ++b) {
    hash = test_checksum(hash, floats_of(buffers[b]), (int64_t)(buffers[b]->size / sizeof(float)));
  }
  return hash;
}

static void name_case(const char *isa, const problem *p, const char *what) {
  test_case("%s: %s, size=%d n_tokens=%d, %s", isa, what, (int)p->params.size, (int)p->n_tokens,
            p->params.gate_is_vector ? "a gate per column" : "one gate");
}

/* ----------------------------------------------------------------------------------------------------------- calls */

static results results_new(const problem *p) {
  const size_t size = (size_t)p->params.size, n = (size_t)p->n_tokens;
  results r = {malloc((n + 1) * size * size * sizeof(float)), malloc(n * size * sizeof(float))};
  return r;
}

static void results_free(results *r) {
  free(r->states);
  free(r->outputs);
}

static float *state_of(const results *r, const problem *p, int32_t n_tokens) {
  return r->states + (int64_t)n_tokens * p->params.size * p->params.size;
}

/* A copy of [n_rows][row_floats] in which only the rows of a range are there: all others are NaN. */
static test_buffer part_new(const float *given, int64_t n_rows, int64_t row_floats, df2_range rows) {
  test_buffer made = floats_new(n_rows * row_floats);
  memset(made.data, 0xff, made.size);
  const int64_t first = rows.begin * row_floats, n = (rows.end - rows.begin) * row_floats;
  memcpy(floats_of(&made) + first, given + first, (size_t)n * sizeof(float));
  return made;
}

/* Whether all floats but those of the range are NaN still, as 0xff makes them. */
static bool others_untouched(const test_buffer *buffer, int64_t first, int64_t end) {
  int64_t n_changed = 0;
  for (int64_t i = 0; i < (int64_t)(buffer->size / sizeof(float)); ++i) {
    n_changed += (i < first || i >= end) && test_float_bits(floats_of(buffer)[i]) != UINT32_MAX;
  }
  return n_changed == 0 && test_buffer_guards_intact(buffer);
}

/* The buffers of a call: one for each token's value and output, so that other rows of each can be seen. */
typedef struct memory {
  test_buffer state_in, state_out, workspace;
  test_buffer values[MAX_TOKENS], outputs[MAX_TOKENS];
  df2_delta_token tokens[MAX_TOKENS];
} memory;

static void memory_new(memory *made, const problem *p, part of, const float *state) {
  const int32_t size = p->params.size;
  const size_t workspace_bytes = df2_delta_net_workspace_bytes(size);
  made->state_in = part_new(state, size, size, of.rows);
  made->state_out = floats_new((int64_t)size * size);
  memset(made->state_out.data, 0xff, made->state_out.size);
  made->workspace = test_buffer_new((workspace_bytes + 63) / 64 * 64, 64);
  memset(made->workspace.data, 0xff, made->workspace.size);
  for (int32_t t = 0; t < of.n_tokens; ++t) {
    made->tokens[t] = p->tokens[of.first_token + t];
    made->values[t] = part_new(made->tokens[t].value, size, 1, of.rows);
    made->outputs[t] = floats_new(size);
    memset(made->outputs[t].data, 0xff, made->outputs[t].size);
    made->tokens[t].value = floats_of(&made->values[t]);
    made->tokens[t].output = made->tokens[t].query != NULL ? floats_of(&made->outputs[t]) : NULL;
  }
}

static void memory_free(memory *used, part of) {
  test_buffer_free(&used->state_in);
  test_buffer_free(&used->state_out);
  test_buffer_free(&used->workspace);
  for (int32_t t = 0; t < of.n_tokens; ++t) {
    test_buffer_free(&used->values[t]);
    test_buffer_free(&used->outputs[t]);
  }
}

/* Computes a part from the state in results, and takes from the output what belongs to it, of which nothing else may
 * have been written. */
static void compute(const results *to, const df2_delta_net_kernel *kernel, const problem *p, part of, storing how) {
  const int32_t size = p->params.size;
  static memory used;
  memory_new(&used, p, of, state_of(to, p, of.first_token));
  const test_buffer *stored = how == STORE_IN_PLACE ? &used.state_in : &used.state_out;
  call c = {.kernel = kernel, .problem = p, .tokens = used.tokens, .part = of, .workspace = used.workspace.data};
  c.state_in = floats_of(&used.state_in);
  c.state_out = how == STORE_NOTHING ? NULL : floats_of(stored);
  const char *broken = test_watched_call(run, &c, has_sme);
  test_check(broken == NULL, "%s", broken);
  const int64_t first = of.rows.begin * size, end = of.rows.end * size;
  test_check(others_untouched(&used.state_in, first, end) && others_untouched(&used.state_out, first, end),
             "wrote to other rows of a state");
  test_check(how == STORE_IN_PLACE || memcmp(c.state_in + first, state_of(to, p, of.first_token) + first,
                                             (size_t)(end - first) * sizeof(float)) == 0,
             "wrote to the state it reads");
  test_check(how != STORE_NOTHING || others_untouched(&used.state_out, 0, 0), "wrote a state that nobody wants");
  test_check(test_buffer_guards_intact(&used.workspace), "wrote outside the workspace");
  if (how != STORE_NOTHING) {
    memcpy(state_of(to, p, of.first_token + of.n_stored) + first, floats_of(stored) + first,
           (size_t)(end - first) * sizeof(float));
  }
  for (int32_t t = 0; t < of.n_tokens; ++t) {
    const bool wanted = used.tokens[t].query != NULL;
    test_check(others_untouched(&used.outputs[t], wanted ? of.rows.begin : 0, wanted ? of.rows.end : 0),
               "wrote to other rows of the output of token %d", (int)t);
    memcpy(to->outputs + (int64_t)(of.first_token + t) * size + of.rows.begin,
           floats_of(&used.outputs[t]) + of.rows.begin, (size_t)(of.rows.end - of.rows.begin) * sizeof(float));
  }
  memory_free(&used, of);
}

static df2_range all_rows(const problem *p) {
  return (df2_range){0, p->params.size};
}

/* By ref.c, each token alone. */
static results compute_alone(const problem *p) {
  results made = results_new(p);
  name_case("ref", p, "each token alone");
  memcpy(made.states, p->state.data, p->state.size);
  for (int32_t t = 0; t < p->n_tokens; ++t) {
    compute(&made, df2_delta_net_find(0), p, (part){t, 1, 1, all_rows(p)}, STORE_SEPARATE);
  }
  return made;
}

/* ------------------------------------------------------------------------------------------------------ comparison */

static void compare_state(const results *found, const results *expected, const problem *p, int32_t n_tokens) {
  const int64_t size = p->params.size;
  const float *ours = state_of(found, p, n_tokens), *theirs = state_of(expected, p, n_tokens);
  const int64_t at = test_first_difference(ours, theirs, size * size);
  test_check(at < 0, "state after %d tokens, row %d, column %d: %a, not %a", (int)n_tokens, (int)(at / size),
             (int)(at % size), at < 0 ? 0.0 : (double)ours[at], at < 0 ? 0.0 : (double)theirs[at]);
}

static void compare_outputs(const results *found, const results *expected, const problem *p) {
  const int64_t size = p->params.size;
  const int64_t at = test_first_difference(found->outputs, expected->outputs, p->n_tokens * size);
  test_check(at < 0, "output of token %d, row %d: %a, not %a", (int)(at / size), (int)(at % size),
             at < 0 ? 0.0 : (double)found->outputs[at], at < 0 ? 0.0 : (double)expected->outputs[at]);
}

/* Forgets everything but the state before the first token. */
static void clear(const results *r, const problem *p) {
  const size_t size = (size_t)p->params.size, n = (size_t)p->n_tokens;
  memset(state_of(r, p, 1), 0xff, n * size * size * sizeof(float));
  memset(r->outputs, 0xff, n * size * sizeof(float));
}

static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_delta_net_kernel *kernel = df2_delta_net_kernel_at(index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

/* All tokens at once, with the state after any number of them stored. */
static void check_stored(const df2_delta_net_kernel *kernel, const problem *p, const results *expected,
                         const results *found, int32_t n_stored, storing how) {
  clear(found, p);
  compute(found, kernel, p, (part){0, p->n_tokens, n_stored, all_rows(p)}, how);
  compare_outputs(found, expected, p);
  if (how != STORE_NOTHING) {
    compare_state(found, expected, p, n_stored);
  }
  memcpy(found->states, p->state.data, p->state.size);
}

/* Tokens in two calls, rows among threads: the state between them goes on. */
static void check_split(const df2_delta_net_kernel *kernel, const problem *p, const results *expected,
                        const results *found, int32_t n_first, int64_t n_threads) {
  clear(found, p);
  for (int64_t thread = n_threads - 1; thread >= 0; --thread) {
    const df2_range rows = df2_split(p->params.size, thread, n_threads);
    compute(found, kernel, p, (part){0, n_first, n_first, rows}, STORE_SEPARATE);
    compute(found, kernel, p, (part){n_first, p->n_tokens - n_first, p->n_tokens - n_first, rows}, STORE_IN_PLACE);
  }
  compare_outputs(found, expected, p);
  compare_state(found, expected, p, n_first);
  compare_state(found, expected, p, p->n_tokens);
}

static void check_kernels(const test_options *options, const problem *p, const results *expected, test_random *random,
                          const char *what) {
  results found = results_new(p);
  memcpy(found.states, p->state.data, p->state.size);
  const uint64_t input = hash_problem(p);
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_delta_net_kernel *kernel = df2_delta_net_kernel_at(i, &features);
    name_case(kernel->isa, p, what);
    const int32_t step = p->params.size > 40 && p->n_tokens > 8 ? 5 : 1;
    for (int32_t n_stored = 0; n_stored <= p->n_tokens; n_stored += step) {
      check_stored(kernel, p, expected, &found, n_stored, n_stored % 2 == 0 ? STORE_SEPARATE : STORE_IN_PLACE);
    }
    check_stored(kernel, p, expected, &found, p->n_tokens, STORE_SEPARATE);
    check_stored(kernel, p, expected, &found, 0, STORE_IN_PLACE);
    check_stored(kernel, p, expected, &found, p->n_tokens, STORE_NOTHING);
    for (int64_t n_threads = 1; n_threads <= 4; ++n_threads) {
      check_split(kernel, p, expected, &found, (int32_t)test_random_below(random, (uint32_t)p->n_tokens + 1),
                  n_threads);
    }
  }
  test_check(hash_problem(p) == input, "wrote to its input");
  results_free(&found);
}

/* -------------------------------------------------------------------------------------------------- random problems */

/* The exact state, and by how much a computed one may differ. */
typedef struct exact {
  double *state, *error, *out;
} exact;

/* Adds what rounding makes of one row in one token: `state` is the one before it, `next` the one after. Returns what it
 * makes of the output. A sum is of size / 16 products, then halved four times; factors are products of an exp. */
static double add_row_error(double *error, const double *state, const double *next, const df2_delta_params *params,
                            const df2_delta_token *token, double value) {
  const double unit = (double)FLT_EPSILON / 2.0;
  const double of_sum = ((double)params->size / 16.0 + 4.0 + 3.5) * unit;
  double product = 0.0, key_error = 0.0, query_error = 0.0, key_query = 0.0;
  for (int32_t i = 0; i < params->size; ++i) {
    const double decay = exp((double)token->gate[params->gate_is_vector ? i : 0]);
    const double key = fabs((double)token->key[i]), query = token->query != NULL ? fabs((double)token->query[i]) : 0.0;
    product += state[i] * decay * (double)token->key[i];
    key_error += (error[i] + fabs(state[i]) * of_sum) * decay * key;
    query_error += (error[i] + fabs(state[i]) * of_sum) * decay * query;
    key_query += key * query;
  }
  const double change = (value - product) * (double)token->beta;
  const double change_error = (key_error + fabs(value - product) * unit) * (double)token->beta + fabs(change) * unit;
  for (int32_t i = 0; i < params->size; ++i) {
    const double decay = exp((double)token->gate[params->gate_is_vector ? i : 0]);
    error[i] = (error[i] + fabs(state[i]) * 2.5 * unit) * decay + change_error * fabs((double)token->key[i]) +
               fabs(next[i]) * unit + (double)FLT_MIN;
  }
  const double sum_error = query_error + (change_error + fabs(change) * (of_sum + 2.0 * unit)) * key_query;
  return (sum_error + query_error * 2.0 * unit) * (double)params->scale;
}

static void note_error(float found, double exactly, double allowed, const char *what, int32_t token, int32_t at) {
  const double error = fabs((double)found - exactly) / (allowed * 1.01 + fabs(exactly) * 2e-7 + (double)FLT_MIN);
  largest_error = fmax(largest_error, error);
  test_check(error <= 1.0, "%s, token %d, %d: %.9g, not %.9g: %.2f times what is allowed", what, (int)token, (int)at,
             (double)found, exactly, error);
}

static void check_token(exact *e, const problem *p, const results *found, int32_t t) {
  const int32_t size = p->params.size, n = size * size;
  const df2_delta_token *token = &p->tokens[t];
  double *before = malloc((size_t)n * sizeof(double));
  memcpy(before, e->state, (size_t)n * sizeof(double));
  df2_delta_net_ref_f64(e->out, e->state, &p->params, token);
  for (int32_t j = 0; j < size; ++j) {
    const double allowed = add_row_error(e->error + j * size, before + j * size, e->state + j * size, &p->params, token,
                                         (double)token->value[j]);
    if (token->query != NULL) {
      note_error(found->outputs[t * size + j], e->out[j], allowed, "output", t, j);
    }
  }
  const float *state = state_of(found, p, t + 1);
  for (int32_t i = 0; i < n; ++i) {
    note_error(state[i], e->state[i], e->error[i], "state", t, i);
  }
  free(before);
}

static void check_against_definition(const problem *p, const results *found) {
  const int32_t size = p->params.size, n = size * size;
  double *memory = malloc((size_t)(2 * n + size) * sizeof(double));
  exact e = {memory, memory + n, memory + 2 * n};
  for (int32_t i = 0; i < n; ++i) {
    e.state[i] = (double)floats_of(&p->state)[i];
    e.error[i] = 0.0;
  }
  for (int32_t t = 0; t < p->n_tokens; ++t) {
    check_token(&e, p, found, t);
  }
  free(memory);
}

static void check_random_problems(const test_options *options) {
  static const int32_t sizes[] = {1,  2,  3,  7,  8,  9,  15, 16, 17, 20, 31,  32, 33,
                                  40, 48, 63, 64, 65, 80, 96, 5,  25, 36, 128, 81, 200};
  static const int32_t n_tokens[] = {1, 2, 3, 5, 8, 15, 16, 17, 33, 40};
  const int n_sizes = options->quick ? 23 : 26;
  for (int i = 0; i < 4 * n_sizes; ++i) {
    test_random random = test_random_for(options->seed, "delta_net", (uint64_t)i);
    const int32_t size = sizes[i % n_sizes];
    const int n_lengths = size > 40 && options->quick ? 6 : size > 64 ? 8 : 10;
    problem p;
    problem_new(&p, size, n_tokens[(i + i / n_sizes) % n_lengths], i / n_sizes % 2 == 1, &random);
    results expected = compute_alone(&p);
    check_against_definition(&p, &expected);
    for (int32_t t = 0; t < p.n_tokens; ++t) {
      checksum = p.tokens[t].query != NULL ? test_checksum(checksum, expected.outputs + t * size, size) : checksum;
    }
    checksum = test_checksum(checksum, state_of(&expected, &p, p.n_tokens), size * size);
    check_kernels(options, &p, &expected, &random, "random");
    results_free(&expected);
    problem_free(&p);
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
  printf("largest error of ref: %.2f of what is allowed\n", largest_error);
}

/* ------------------------------------------------------------------------------------------------ special problems */

#define SPECIAL_TOKENS 5

static void all_have_queries(problem *p) {
  for (int32_t t = 0; t < p->n_tokens; ++t) {
    p->tokens[t].query = floats_of(&p->queries) + (int64_t)t * p->params.size;
  }
}

/* A NaN in a value makes NaNs of its row from that token on, and of nothing else. */
static void check_nan(const test_options *options, int32_t size, bool gate_is_vector) {
  test_random random = test_random_for(options->seed, "nan", (uint64_t)size);
  const int32_t token = 2, row = (int32_t)test_random_below(&random, (uint32_t)size);
  problem p;
  problem_new(&p, size, SPECIAL_TOKENS, gate_is_vector, &random);
  all_have_queries(&p);
  results clean = compute_alone(&p);
  floats_of(&p.values)[token * size + row] = NAN;
  results expected = compute_alone(&p);
  int64_t n_wrong = 0;
  for (int32_t at = 0; at < SPECIAL_TOKENS * size; ++at) {
    const bool is_nan = at / size >= token && at % size == row;
    n_wrong += is_nan ? !isnan(expected.outputs[at]) : expected.outputs[at] != clean.outputs[at];
  }
  test_check(n_wrong == 0, "NaN in token %d, row %d: %d wrong values", (int)token, (int)row, (int)n_wrong);
  check_kernels(options, &p, &expected, &random, "NaN");
  results_free(&clean);
  results_free(&expected);
  problem_free(&p);
}

/* Gates beyond what exp knows: the state is forgotten, or grows as if the gate were 88. */
static void check_gates(const test_options *options, int32_t size, float gate, float as) {
  test_random random = test_random_for(options->seed, "gates", (uint64_t)size);
  problem p;
  problem_new(&p, size, SPECIAL_TOKENS, false, &random);
  all_have_queries(&p);
  floats_of(&p.gates)[3] = as;
  results expected = compute_alone(&p);
  floats_of(&p.gates)[3] = gate;
  check_kernels(options, &p, &expected, &random, "gates");
  results_free(&expected);
  problem_free(&p);
}

static void check_special_problems(const test_options *options) {
  static const int32_t sizes[] = {16, 30, 53};
  for (int i = 0; i < 3; ++i) {
    check_nan(options, sizes[i], false);
    check_nan(options, sizes[i], true);
    check_gates(options, sizes[i], -INFINITY, -90.0f);
    check_gates(options, sizes[i], INFINITY, 88.0f);
    check_gates(options, sizes[i], 89.0f, 88.0f);
  }
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    printf("delta_net %s\n", df2_delta_net_find(df2_cpu_features())->isa);
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_random_problems(&options);
  check_special_problems(&options);
  return test_finish("delta_net");
}
