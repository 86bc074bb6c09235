/* How close attention (native/ops/attention) comes to what the machine can do.
 *
 * As in bench_qmm, the machine's own limits are measured first, in the same process. Then rows attend to caches laid
 * out as llama.cpp's: the vectors of all K/V heads at one position lie side by side, so that those of one head are a
 * stride apart. There are as many layers as it takes for no cache of the processor to hold them, each of which is read
 * once. Threads claim spans of a layer, for all heads at once, as the library does it with few rows. No computation can
 * take less than the longer of reading its keys and values once and of doing its multiplications at the peak rate: the
 * column "of limit" is that time over the measured one. */
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_options.h"
#include "machine_limits.h"
#include "ops/attention/attention.h"
#include "ops/common/cpu.h"
#include "random_weights.h"
#include "thread_team.h"

#define MIB ((size_t)1 << 20)
#define MAX_ROWS 96
#define MAX_CHECKED_KEYS 512
#define HEADS_PER_QUERY 3 /* rows of one query: heads that share a K/V head, and the query's mask */

static const char *const type_names[DF2_ATTENTION_N_TYPES] = {"f32",  "f16",  "bf16", "q8_0",  "q4_0",
                                                              "q4_1", "q5_0", "q5_1", "iq4_nl"};

typedef struct options {
  int32_t n_threads[MAX_LIST];
  int32_t n_rows[MAX_LIST];
  int32_t n_keys[MAX_LIST];
  const char *types; /* "f16,q8_0" */
  const char *isa;   /* null for the best */
  int32_t size;
  int32_t n_heads;
  int32_t mib;
  int32_t n_repeats;
  bool json;
} options;

/* Per number of threads. */
typedef struct limits {
  int32_t n_threads;
  double bytes_per_s;
  double float_per_s;
} limits;

typedef struct scratch {
  void *workspace;
  float *partials;
  float *totals;
} scratch;

/* Keys and values of all layers, and the rows that attend to each of their heads. */
typedef struct attention {
  const df2_attention_kernel *kernel;
  df2_attention_type type;
  int32_t size, n_heads, n_rows;
  int64_t n_keys, n_layers;
  size_t vector_bytes;
  uint8_t *memory; /* [layer][keys, values][key][head] */
  float *queries;
  uint16_t *mask;
  df2_attention_row rows[MAX_ROWS];
  scratch of_thread[TEAM_MAX_THREADS];
  atomic_llong next_unit;
} attention;

static void *allocate(size_t n_bytes) {
  void *memory = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
  if (!memory) {
    fprintf(stderr, "bench_attention: no memory for %zu MiB; ask for less with --mib or --keys\n", n_bytes / MIB);
    exit(1);
  }
  return memory;
}

/* ------------------------------------------------------------------------------------------------------ attention */

static size_t half_layer_bytes(const attention *of) {
  return (size_t)of->n_keys * (size_t)of->n_heads * of->vector_bytes;
}

static size_t cache_bytes(const attention *of) {
  return (size_t)of->n_layers * 2 * half_layer_bytes(of);
}

/* Values below 1, of either sign or, of types with a minimum, none below 0. */
static void random_blocks(uint8_t *vector, df2_attention_type type, const float *values, int32_t size) {
  const size_t block_bytes = df2_attention_block_bytes(type);
  const uint16_t scale = 0x2000; /* 2^-7 */
  const uint16_t none = 0;       /* q4_1 and q5_1: the minimum; the others have codes there */
  for (int32_t block = 0; block < size / DF2_ATTENTION_BLOCK; block++, vector += block_bytes) {
    for (size_t i = 0; i < block_bytes; i++) {
      uint32_t bits;
      memcpy(&bits, &values[block * DF2_ATTENTION_BLOCK + (int32_t)(i % DF2_ATTENTION_BLOCK)], sizeof(bits));
      vector[i] = (uint8_t)(bits >> 8);
    }
    memcpy(vector, &scale, sizeof(scale));
    memcpy(vector + sizeof(scale), &none, sizeof(none));
  }
}

/* Values between 2^-5 and 1, of either sign. */
static void random_vector(uint8_t *vector, df2_attention_type type, int32_t size, uint32_t seed) {
  float values[DF2_ATTENTION_MAX_SIZE];
  random_floats(values, size, seed);
  if (df2_attention_block_bytes(type) != 0) {
    random_blocks(vector, type, values, size);
    return;
  }
  for (int32_t i = 0; i < size; i++) {
    uint32_t bits;
    memcpy(&bits, &values[i], sizeof(bits));
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint16_t half = (uint16_t)(sign | (10 + bits % 5) << 10 | (bits >> 8 & 0x3ff));
    const uint16_t bfloat = (uint16_t)(sign | (122 + bits % 5) << 7 | (bits >> 8 & 0x7f));
    if (type == DF2_ATTENTION_F32) {
      memcpy(vector + 4 * i, &values[i], sizeof(float));
    } else {
      memcpy(vector + 2 * i, type == DF2_ATTENTION_F16 ? &half : &bfloat, sizeof(half));
    }
  }
}

/* A few different vectors are enough. */
static void fill_cache(attention *of) {
  const size_t n_vectors = cache_bytes(of) / of->vector_bytes;
  const size_t n_different = n_vectors < 509 ? n_vectors : 509;
  for (size_t i = 0; i < n_different; i++) {
    random_vector(of->memory + i * of->vector_bytes, of->type, of->size, 1000u + (uint32_t)i);
  }
  for (size_t i = n_different; i < n_vectors; i++) {
    memcpy(of->memory + i * of->vector_bytes, of->memory + (i - n_different) * of->vector_bytes, of->vector_bytes);
  }
}

static scratch make_scratch(int32_t size, int32_t n_heads) {
  const size_t result_bytes = MAX_ROWS * df2_attention_partial_floats(size) * sizeof(float);
  scratch made = {allocate(df2_attention_workspace_bytes(MAX_ROWS, size, size)), allocate(result_bytes),
                  allocate((size_t)n_heads * result_bytes)};
  for (int32_t i = 0; i < n_heads * MAX_ROWS; i++) {
    df2_attention_clear(made.totals + (size_t)i * df2_attention_partial_floats(size), size);
  }
  return made;
}

static void make_attention(attention *made, const options *chosen, const df2_attention_kernel *kernel,
                           df2_attention_type type, int64_t n_keys) {
  memset(made, 0, sizeof(*made));
  made->kernel = kernel;
  made->type = type;
  made->size = chosen->size;
  made->n_heads = chosen->n_heads;
  made->n_keys = n_keys;
  made->vector_bytes = df2_attention_vector_bytes(type, chosen->size);
  made->n_layers = (int64_t)((size_t)chosen->mib * MIB / (2 * half_layer_bytes(made))) + 1;
  made->memory = allocate(cache_bytes(made));
  fill_cache(made);
  made->queries = allocate(MAX_ROWS * (size_t)made->size * sizeof(float));
  random_floats(made->queries, (int64_t)MAX_ROWS * made->size, 7);
  made->mask = allocate(MAX_ROWS * (size_t)n_keys * sizeof(uint16_t));
  memset(made->mask, 0, MAX_ROWS * (size_t)n_keys * sizeof(uint16_t));
  for (int32_t row = 0; row < MAX_ROWS; row++) {
    const uint16_t *mask = made->mask + (size_t)(row / HEADS_PER_QUERY) * (size_t)n_keys;
    made->rows[row] = (df2_attention_row){made->queries + row * made->size, mask, 1.0f};
  }
  for (const int32_t *n = chosen->n_threads; *n > 0; n++) {
    for (int32_t thread = 0; thread < *n; thread++) {
      if (!made->of_thread[thread].workspace) {
        made->of_thread[thread] = make_scratch(made->size, made->n_heads);
      }
    }
  }
}

static void free_attention(attention *made) {
  free(made->memory);
  free(made->queries);
  free(made->mask);
  for (int32_t thread = 0; thread < TEAM_MAX_THREADS; thread++) {
    free(made->of_thread[thread].workspace);
    free(made->of_thread[thread].partials);
    free(made->of_thread[thread].totals);
  }
}

static df2_attention_cache cache_of(const attention *of, int64_t layer, bool is_value, int32_t head) {
  const uint8_t *half = of->memory + (size_t)(2 * layer + is_value) * half_layer_bytes(of);
  return (df2_attention_cache){of->type, of->size, half + (size_t)head * of->vector_bytes,
                               (size_t)of->n_heads * of->vector_bytes};
}

/* One span of one head, added to `totals`. */
static void attend(const attention *of, const df2_attention_kernel *kernel, const scratch *own, float *totals,
                   int64_t layer, int32_t head, int64_t first_key, int64_t last_key) {
  const df2_attention_params params = {1.0f / sqrtf((float)of->size), 0.0f};
  const size_t n_floats = df2_attention_partial_floats(of->size);
  const df2_attention_cache keys = cache_of(of, layer, false, head);
  const df2_attention_cache values = cache_of(of, layer, true, head);
  kernel->attend(own->partials, &params, of->rows, of->n_rows, &keys, &values, first_key, last_key, own->workspace);
  for (int32_t row = 0; row < of->n_rows; row++) {
    kernel->merge(totals + (size_t)row * n_floats, own->partials + (size_t)row * n_floats, of->size);
  }
}

static void rewind_units(void *context) {
  atomic_store(&((attention *)context)->next_unit, 0);
}

static void attend_all(void *context, int32_t thread, int32_t n_threads) {
  attention *of = context;
  const int64_t n_spans = (of->n_keys + DF2_ATTENTION_SPAN - 1) / DF2_ATTENTION_SPAN;
  const scratch *own = &of->of_thread[thread];
  (void)n_threads;
  for (;;) {
    const int64_t unit = atomic_fetch_add(&of->next_unit, 1);
    if (unit >= of->n_layers * n_spans) {
      return;
    }
    const int64_t first = unit % n_spans * DF2_ATTENTION_SPAN;
    const int64_t last = first + DF2_ATTENTION_SPAN < of->n_keys ? first + DF2_ATTENTION_SPAN : of->n_keys;
    for (int32_t head = 0; head < of->n_heads; head++) {
      float *totals = own->totals + (size_t)head * MAX_ROWS * df2_attention_partial_floats(of->size);
      attend(of, of->kernel, own, totals, unit / n_spans, head, first, last);
    }
  }
}

/* Outputs of the last head of the first layer, from few keys. */
static void compute_some(const attention *of, const df2_attention_kernel *kernel, float *out) {
  const size_t n_floats = df2_attention_partial_floats(of->size);
  const int64_t n_keys = of->n_keys < MAX_CHECKED_KEYS ? of->n_keys : MAX_CHECKED_KEYS;
  float *totals = allocate((size_t)of->n_rows * n_floats * sizeof(float));
  for (int32_t row = 0; row < of->n_rows; row++) {
    df2_attention_clear(totals + (size_t)row * n_floats, of->size);
  }
  for (int64_t first = 0; first < n_keys; first += DF2_ATTENTION_SPAN) {
    const int64_t last = first + DF2_ATTENTION_SPAN < n_keys ? first + DF2_ATTENTION_SPAN : n_keys;
    attend(of, kernel, &of->of_thread[0], totals, 0, of->n_heads - 1, first, last);
  }
  for (int32_t row = 0; row < of->n_rows; row++) {
    kernel->finish(out + row * of->size, totals + (size_t)row * n_floats, NULL, of->size);
  }
  free(totals);
}

/* A fast kernel that computes something else is no kernel: against ref.c, bit by bit. */
static bool is_right(const attention *of) {
  const size_t n_bytes = (size_t)of->n_rows * (size_t)of->size * sizeof(float);
  float *found = allocate(n_bytes);
  float *expected = allocate(n_bytes);
  compute_some(of, of->kernel, found);
  compute_some(of, df2_attention_find(0), expected);
  const bool same = memcmp(found, expected, n_bytes) == 0;
  free(found);
  free(expected);
  return same;
}

/* --------------------------------------------------------------------------------------------------------- report */

static void print_limits(const limits *found, const char *isa, bool json) {
  if (json) {
    printf("{\"limits\": {\"n_threads\": %d, \"isa\": \"%s\", \"float_gop_per_s\": %.1f}}\n", found->n_threads, isa,
           found->float_per_s / 1e9);
  } else {
    printf("%d thread%s: float %.0f GOP/s (%s)\n", found->n_threads, found->n_threads == 1 ? "" : "s",
           found->float_per_s / 1e9, isa);
  }
  fflush(stdout);
}

static void print_header(const options *chosen) {
  if (!chosen->json) {
    printf("\n%d K/V heads of size %d, caches of %d MiB; best of %d\n", chosen->n_heads, chosen->size, chosen->mib,
           chosen->n_repeats);
    printf("%-5s %-7s %7s %6s %5s %9s %9s %7s %8s %8s %9s %10s %s\n", "type", "isa", "threads", "keys", "rows",
           "best ms", "median ms", "GB/s", "of GB/s", "GOP/s", "of peak %", "of limit %", "as ref.c");
  }
}

static void print_result(const attention *of, const limits *machine, team_times times, bool right, bool json) {
  const double n_bytes = (double)cache_bytes(of);
  const double n_pairs = (double)(of->n_layers * of->n_heads * of->n_keys) * of->n_rows;
  const double n_operations = 4.0 * n_pairs * of->size;
  const double read_s = n_bytes / machine->bytes_per_s;
  const double multiply_s = machine->float_per_s > 0 ? n_operations / machine->float_per_s : 0;
  const double of_peak = multiply_s / times.best_s;
  const double of_limit = fmax(read_s, multiply_s) / times.best_s;
  if (json) {
    printf("{\"attention\": {\"type\": \"%s\", \"isa\": \"%s\", ", type_names[of->type], of->kernel->isa);
    printf("\"n_threads\": %d, \"n_keys\": %lld, \"n_rows\": %d, ", machine->n_threads, (long long)of->n_keys,
           of->n_rows);
    printf("\"size\": %d, \"n_heads\": %d, \"n_layers\": %lld, ", of->size, of->n_heads, (long long)of->n_layers);
    printf("\"best_ms\": %.4f, \"median_ms\": %.4f, ", times.best_s * 1e3, times.median_s * 1e3);
    printf("\"cache_bytes\": %.0f, \"gb_per_s\": %.2f, ", n_bytes, n_bytes / times.best_s / 1e9);
    printf("\"read_gb_per_s\": %.2f, \"gop_per_s\": %.1f, ", machine->bytes_per_s / 1e9,
           n_operations / times.best_s / 1e9);
    printf("\"of_peak\": %.4f, \"of_limit\": %.4f, \"is_right\": %s}}\n", of_peak, of_limit, right ? "true" : "false");
  } else {
    printf("%-5s %-7s %7d %6lld %5d ", type_names[of->type], of->kernel->isa, machine->n_threads, (long long)of->n_keys,
           of->n_rows);
    printf("%9.3f %9.3f %7.1f %8.1f ", times.best_s * 1e3, times.median_s * 1e3, n_bytes / times.best_s / 1e9,
           machine->bytes_per_s / 1e9);
    printf("%8.0f %9.0f %10.0f %s\n", n_operations / times.best_s / 1e9, 100 * of_peak, 100 * of_limit,
           right ? "yes" : "NO");
  }
  fflush(stdout);
}

/* ------------------------------------------------------------------------------------------------------------ run */

/* The kernel to measure: the best for this CPU, or the one that was asked for; null if this build or this CPU has no
 * such kernel. */
static const df2_attention_kernel *choose_kernel(const char *isa) {
  if (!isa) {
    return df2_attention_find(df2_cpu_features());
  }
  uint32_t required = 0;
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = df2_attention_kernel_at(i, &required)) != NULL; i++) {
    if (strcmp(kernel->isa, isa) == 0) {
      return (required & ~df2_cpu_features()) == 0 ? kernel : NULL;
    }
  }
  return NULL;
}

static bool bench(const options *chosen, const limits *machine, const df2_attention_kernel *kernel,
                  df2_attention_type type, int64_t n_keys) {
  attention of;
  bool all_right = true;
  make_attention(&of, chosen, kernel, type, n_keys);
  for (const limits *first = machine; first->n_threads > 0; first++) {
    limits now = *first;
    now.bytes_per_s = limits_read_rate(of.memory, cache_bytes(&of), now.n_threads, chosen->n_repeats);
    for (const int32_t *n_rows = chosen->n_rows; *n_rows > 0; n_rows++) {
      of.n_rows = *n_rows;
      const bool right = is_right(&of);
      const team_times times = team_measure(attend_all, rewind_units, &of, now.n_threads, chosen->n_repeats);
      print_result(&of, &now, times, right, chosen->json);
      all_right = all_right && right;
    }
  }
  free_attention(&of);
  return all_right;
}

static void measure_limits(limits *machine, const options *chosen, const char *isa) {
  int32_t n = 0;
  for (; chosen->n_threads[n] > 0; n++) {
    machine[n].n_threads = chosen->n_threads[n];
    machine[n].float_per_s = limits_float_rate(isa, chosen->n_threads[n], chosen->n_repeats);
    print_limits(&machine[n], isa, chosen->json);
  }
  machine[n].n_threads = 0;
}

static int usage(void) {
  fprintf(stderr,
          "usage: bench_attention [--threads 1,2] [--rows 1,3,8] [--keys 256,8192] [--types f16,q8_0] [--isa NAME]\n"
          "                       [--size N] [--heads N] [--mib N] [--repeats N] [--json]\n"
          "Rows, per K/V head, are 1 to %d; the size of a head is a multiple of 32. --json prints one JSON object a\n"
          "line.\n",
          MAX_ROWS);
  return 2;
}

static bool parse(options *chosen, int argc, char **argv) {
  bool good = true;
  for (int i = 1; i < argc && good; i++) {
    const char *name = argv[i];
    if (strcmp(name, "--json") == 0) {
      chosen->json = true;
      continue;
    }
    const char *value = ++i < argc ? argv[i] : "";
    if (strcmp(name, "--threads") == 0) {
      good = parse_list(chosen->n_threads, value, TEAM_MAX_THREADS);
    } else if (strcmp(name, "--rows") == 0) {
      good = parse_list(chosen->n_rows, value, MAX_ROWS);
    } else if (strcmp(name, "--keys") == 0) {
      good = parse_list(chosen->n_keys, value, 1 << 20);
    } else if (strcmp(name, "--types") == 0) {
      chosen->types = value;
    } else if (strcmp(name, "--isa") == 0) {
      chosen->isa = value;
    } else if (strcmp(name, "--size") == 0) {
      good = parse_number(&chosen->size, value, DF2_ATTENTION_MAX_SIZE) && chosen->size % 32 == 0;
    } else if (strcmp(name, "--heads") == 0) {
      good = parse_number(&chosen->n_heads, value, 256);
    } else if (strcmp(name, "--mib") == 0) {
      good = parse_number(&chosen->mib, value, 1 << 16);
    } else if (strcmp(name, "--repeats") == 0) {
      good = parse_number(&chosen->n_repeats, value, 1000);
    } else {
      good = false;
    }
  }
  return good;
}

int main(int argc, char **argv) {
  options chosen = {.n_threads = {1, 2},
                    .n_rows = {1, 3, 8, 24, 64},
                    .n_keys = {256, 2048, 8192, 32768},
                    .types = "f16,q8_0",
                    .size = 128,
                    .n_heads = 8,
                    .mib = 128,
                    .n_repeats = 9};
  limits machine[MAX_LIST];
  if (!parse(&chosen, argc, argv)) {
    return usage();
  }
  const df2_attention_kernel *kernel = choose_kernel(chosen.isa);
  if (!kernel) {
    fprintf(stderr, "bench_attention: this build or this CPU has no kernel for %s; leave --isa out\n", chosen.isa);
    return 2;
  }
  measure_limits(machine, &chosen, kernel->isa);
  print_header(&chosen);
  bool all_right = true;
  int32_t n_types = 0;
  for (int type = 0; type < DF2_ATTENTION_N_TYPES; type++) {
    if (is_listed(chosen.types, type_names[type])) {
      n_types++;
      for (const int32_t *n_keys = chosen.n_keys; *n_keys > 0; n_keys++) {
        all_right = bench(&chosen, machine, kernel, (df2_attention_type)type, *n_keys) && all_right;
      }
    }
  }
  if (n_types == 0) {
    fprintf(stderr,
            "bench_attention: no type is called %s; there are f32, f16, bf16, q8_0, q4_0, q4_1, "
            "q5_0, q5_1 and iq4_nl\n",
            chosen.types);
    return 2;
  }
  if (!all_right) {
    fprintf(stderr, "bench_attention: the kernel's results differ from ref.c's; its times mean nothing\n");
  }
  return all_right ? 0 : 1;
}
