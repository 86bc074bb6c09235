/* How close the matrix products of native/ops/qmm come to what the machine can do.
 *
 * First the machine's own limits are measured, in the same process: how fast memory is read, and how fast values are
 * multiplied that are in registers already. Then every type multiplies a matrix that no cache holds with 1 to 16 rows,
 * tiles claimed by the threads one after the other as llama.cpp's threads do it. A product can take no less than the
 * longer of reading its packed bytes once and of doing its multiplications at the peak rate: the column "of limit" is
 * that time over the measured one. Reading the packed bytes is measured again right before their products, because a
 * virtual machine's cores may move between memory controllers. */
#define _DEFAULT_SOURCE /* madvise */
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bench_options.h"
#include "machine_limits.h"
#include "ops/common/cpu.h"
#include "ops/qmm/formats.h"
#include "random_weights.h"
#include "thread_team.h"

#define MIB ((size_t)1 << 20)
#define HUGE_PAGE (2 * MIB)

typedef struct options {
  int32_t n_threads[MAX_LIST];
  int32_t n_rows[MAX_LIST];
  const char *types; /* "q4_0,q8_0"; null for all */
  const char *isa;   /* null for the best */
  int64_t n_in;
  size_t mib;
  int32_t n_repeats;
  bool json;
} options;

/* Per number of threads. */
typedef struct limits {
  int32_t n_threads;
  double bytes_per_s;
  double int8_per_s;
  double float_per_s;
} limits;

/* One matrix and the rows it is multiplied with. */
typedef struct product {
  const df2_qmm_kernel *kernel;
  uint8_t *packed;
  size_t tile_bytes;
  int64_t n_tiles;
  int64_t n_in;
  float *rows;
  const float *row_pointers[DF2_QMM_BATCH];
  void *batch;
  int32_t n_rows;
  atomic_llong next_tile;
} product;

/* Big memory in big pages, as the library keeps packed weights. */
static void *allocate(size_t n_bytes) {
  const size_t page = n_bytes >= 4 * HUGE_PAGE ? HUGE_PAGE : 64;
  void *memory = aligned_alloc(page, (n_bytes + page - 1) / page * page);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (memory && page == HUGE_PAGE) {
    madvise(memory, n_bytes, MADV_HUGEPAGE);
  }
#endif
  if (!memory) {
    fprintf(stderr, "bench_qmm: no memory for %zu MiB; ask for less with --mib\n", n_bytes / MIB);
    exit(1);
  }
  return memory;
}

/* ------------------------------------------------------------------------------------------------------- product */

static void make_product(product *made, const df2_qmm_kernel *kernel, int64_t n_in, size_t n_bytes) {
  df2_qmm_type type = kernel->type;
  memset(made, 0, sizeof(*made));
  made->kernel = kernel;
  made->n_in = n_in;
  made->tile_bytes = df2_qmm_tile_bytes(type, n_in);
  made->n_tiles = (int64_t)(n_bytes / made->tile_bytes) + 1;
  made->packed = allocate(made->tile_bytes * (size_t)made->n_tiles);
  made->rows = allocate(sizeof(float) * (size_t)(DF2_QMM_BATCH * n_in));
  made->batch = allocate(df2_qmm_batch_bytes(type, DF2_QMM_BATCH, n_in));
  random_floats(made->rows, DF2_QMM_BATCH * n_in, 7);
  for (int32_t row = 0; row < DF2_QMM_BATCH; row++) {
    made->row_pointers[row] = made->rows + row * n_in;
  }
  void *weights = allocate(df2_qmm_row_bytes(type, n_in) * DF2_QMM_TILE);
  for (int64_t tile = 0; tile < made->n_tiles; tile++) {
    /* one tile's worth of weights at a time, packed as a matrix of one tile; a few different ones are enough */
    if (tile < 8) {
      random_weights(weights, type, DF2_QMM_TILE, n_in, 1000u + (uint32_t)tile);
    }
    df2_qmm_pack_tile(made->packed + made->tile_bytes * (size_t)tile, type, weights, DF2_QMM_TILE, n_in, 0);
  }
  free(weights);
}

static void free_product(product *made) {
  free(made->packed);
  free(made->rows);
  free(made->batch);
}

static void prepare(void *context, int32_t thread, int32_t n_threads) {
  (void)thread;
  (void)n_threads;
  product *of = context;
  of->kernel->prepare(of->batch, of->row_pointers, of->n_rows, 0, of->n_in / DF2_QMM_BLOCK);
}

static void rewind_tiles(void *context) {
  atomic_store(&((product *)context)->next_tile, 0);
}

static void multiply(void *context, int32_t thread, int32_t n_threads) {
  (void)thread;
  (void)n_threads;
  product *of = context;
  _Alignas(64) float sums[DF2_QMM_BATCH * DF2_QMM_TILE];
  for (;;) {
    int64_t tile = atomic_fetch_add(&of->next_tile, 1);
    if (tile >= of->n_tiles) {
      return;
    }
    of->kernel->multiply(sums, of->packed + of->tile_bytes * (size_t)tile, of->batch, of->n_rows, of->n_in);
  }
}

/* A fast kernel that computes something else is no kernel: its first tiles against ref.c, bit by bit. */
static bool is_right(product *of, const df2_qmm_kernel *reference) {
  _Alignas(64) float found[DF2_QMM_BATCH * DF2_QMM_TILE];
  _Alignas(64) float expected[DF2_QMM_BATCH * DF2_QMM_TILE];
  void *batch = allocate(df2_qmm_batch_bytes(of->kernel->type, DF2_QMM_BATCH, of->n_in));
  bool same = true;
  prepare(of, 0, 1);
  reference->prepare(batch, of->row_pointers, of->n_rows, 0, of->n_in / DF2_QMM_BLOCK);
  for (int64_t tile = 0; tile < 2 && tile < of->n_tiles; tile++) {
    const void *weights = of->packed + of->tile_bytes * (size_t)tile;
    of->kernel->multiply(found, weights, of->batch, of->n_rows, of->n_in);
    reference->multiply(expected, weights, batch, of->n_rows, of->n_in);
    same = same && memcmp(found, expected, sizeof(float) * DF2_QMM_TILE * (size_t)of->n_rows) == 0;
  }
  free(batch);
  return same;
}

/* -------------------------------------------------------------------------------------------------------- report */

static void print_limits(const limits *found, const char *isa, bool json) {
  if (json) {
    printf(
        "{\"limits\": {\"n_threads\": %d, \"isa\": \"%s\", \"read_gb_per_s\": %.2f, \"int8_gop_per_s\": %.1f, "
        "\"float_gop_per_s\": %.1f}}\n",
        found->n_threads, isa, found->bytes_per_s / 1e9, found->int8_per_s / 1e9, found->float_per_s / 1e9);
  } else {
    printf("%d thread%s: memory %.1f GB/s, 8-bit products %.0f GOP/s, float %.0f GOP/s (%s)\n", found->n_threads,
           found->n_threads == 1 ? "" : "s", found->bytes_per_s / 1e9, found->int8_per_s / 1e9,
           found->float_per_s / 1e9, isa);
  }
  fflush(stdout);
}

static void print_header(const options *chosen) {
  if (!chosen->json) {
    printf("\n%lld inputs, packed matrices of %zu MiB; best of %d\n", (long long)chosen->n_in, chosen->mib,
           chosen->n_repeats);
    printf("%-7s %-9s %7s %5s %9s %9s %7s %8s %8s %8s %9s %10s %10s %s\n", "type", "isa", "threads", "rows", "best ms",
           "median ms", "GB/s", "of GB/s", "x stream", "GOP/s", "of peak %", "of limit %", "prepare us", "as ref.c");
  }
}

/* What was measured about one product. */
typedef struct measurement {
  team_times multiplying;
  team_times preparing;
  bool is_right;
} measurement;

/* The same, set against what the machine can do. */
typedef struct verdict {
  double n_bytes;
  double gb_per_s;
  double gop_per_s;
  double times_streaming; /* time / time of reading the packed bytes */
  double of_peak;         /* time of the multiplications at the peak rate / time */
  double of_limit;        /* the larger of the two bounds / time */
} verdict;

static verdict judge(const product *of, const limits *machine, double seconds) {
  double peak = df2_qmm_is_float(df2_qmm_formats[of->kernel->type].codes) ? machine->float_per_s : machine->int8_per_s;
  double n_bytes = (double)of->tile_bytes * (double)of->n_tiles;
  double n_operations = 2.0 * DF2_QMM_TILE * (double)of->n_tiles * (double)of->n_in * of->n_rows;
  double stream_s = n_bytes / machine->bytes_per_s;
  double multiply_s = peak > 0 ? n_operations / peak : 0;
  return (verdict){
      .n_bytes = n_bytes,
      .gb_per_s = n_bytes / seconds / 1e9,
      .gop_per_s = n_operations / seconds / 1e9,
      .times_streaming = seconds / stream_s,
      .of_peak = multiply_s / seconds,
      .of_limit = fmax(stream_s, multiply_s) / seconds,
  };
}

static void print_json(const product *of, const limits *machine, const measurement *found) {
  verdict against = judge(of, machine, found->multiplying.best_s);
  printf("{\"product\": {\"type\": \"%s\", \"isa\": \"%s\", ", df2_qmm_type_name(of->kernel->type), of->kernel->isa);
  printf("\"n_threads\": %d, \"n_rows\": %d, \"n_in\": %lld, \"n_out\": %lld, ", machine->n_threads, of->n_rows,
         (long long)of->n_in, (long long)(of->n_tiles * DF2_QMM_TILE));
  printf("\"best_ms\": %.4f, \"median_ms\": %.4f, \"prepare_us\": %.2f, ", found->multiplying.best_s * 1e3,
         found->multiplying.median_s * 1e3, found->preparing.best_s * 1e6);
  printf("\"packed_bytes\": %.0f, \"gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, ", against.n_bytes, against.gb_per_s,
         machine->bytes_per_s / 1e9);
  printf("\"gop_per_s\": %.1f, \"times_streaming\": %.3f, ", against.gop_per_s, against.times_streaming);
  printf("\"of_peak\": %.4f, \"of_limit\": %.4f, \"is_right\": %s}}\n", against.of_peak, against.of_limit,
         found->is_right ? "true" : "false");
  fflush(stdout);
}

static void print_row(const product *of, const limits *machine, const measurement *found) {
  verdict against = judge(of, machine, found->multiplying.best_s);
  printf("%-7s %-9s %7d %5d ", df2_qmm_type_name(of->kernel->type), of->kernel->isa, machine->n_threads, of->n_rows);
  printf("%9.3f %9.3f ", found->multiplying.best_s * 1e3, found->multiplying.median_s * 1e3);
  printf("%7.1f %8.1f %8.2f ", against.gb_per_s, machine->bytes_per_s / 1e9, against.times_streaming);
  printf("%8.0f %9.0f %10.0f ", against.gop_per_s, 100 * against.of_peak, 100 * against.of_limit);
  printf("%10.1f %s\n", found->preparing.best_s * 1e6, found->is_right ? "yes" : "NO");
  fflush(stdout);
}

/* ----------------------------------------------------------------------------------------------------------- run */

/* The kernel to measure: the best for this CPU, or the one of the instruction set that was asked for; null if this
 * build or this CPU has no such kernel. */
static const df2_qmm_kernel *choose_kernel(df2_qmm_type type, const char *isa) {
  if (!isa) {
    return df2_qmm_find(type, df2_cpu_features());
  }
  uint32_t required = 0;
  const df2_qmm_kernel *kernel;
  for (int32_t i = 0; (kernel = df2_qmm_kernel_at(type, i, &required)) != NULL; i++) {
    if (strcmp(kernel->isa, isa) == 0) {
      return (required & ~df2_cpu_features()) == 0 ? kernel : NULL;
    }
  }
  return NULL;
}

static const df2_qmm_kernel *reference_kernel(df2_qmm_type type) {
  return df2_qmm_find(type, 0);
}

static bool bench_type(df2_qmm_type type, const options *chosen, const limits *machine) {
  product of;
  bool all_right = true;
  make_product(&of, choose_kernel(type, chosen->isa), chosen->n_in, chosen->mib * MIB);
  for (const limits *first = machine; first->n_threads > 0; first++) {
    limits now = *first;
    now.bytes_per_s = limits_read_rate(of.packed, of.tile_bytes * (size_t)of.n_tiles, now.n_threads, chosen->n_repeats);
    for (const int32_t *n_rows = chosen->n_rows; *n_rows > 0; n_rows++) {
      of.n_rows = *n_rows;
      measurement found = {.is_right = is_right(&of, reference_kernel(type))};
      found.preparing = team_measure(prepare, NULL, &of, 1, chosen->n_repeats);
      found.multiplying = team_measure(multiply, rewind_tiles, &of, now.n_threads, chosen->n_repeats);
      (chosen->json ? print_json : print_row)(&of, &now, &found);
      all_right = all_right && found.is_right;
    }
  }
  free_product(&of);
  return all_right;
}

static void measure_limits(limits *machine, const options *chosen, const char *isa) {
  size_t n_bytes = 256 * MIB;
  uint64_t *buffer = allocate(n_bytes);
  for (size_t i = 0; i < n_bytes / sizeof(uint64_t); i++) {
    buffer[i] = i; /* written, so that every page is there */
  }
  int32_t n = 0;
  for (; chosen->n_threads[n] > 0; n++) {
    int32_t n_threads = chosen->n_threads[n];
    machine[n].n_threads = n_threads;
    machine[n].bytes_per_s = limits_read_rate(buffer, n_bytes, n_threads, chosen->n_repeats);
    machine[n].int8_per_s = limits_int8_rate(isa, n_threads, chosen->n_repeats);
    machine[n].float_per_s = limits_float_rate(isa, n_threads, chosen->n_repeats);
    print_limits(&machine[n], isa, chosen->json);
  }
  machine[n].n_threads = 0;
  free(buffer);
}

static int usage(void) {
  fprintf(stderr,
          "usage: bench_qmm [--threads 1,2] [--rows 1,2,4,8,16] [--types q4_0,q8_0] [--isa NAME] [--inputs N]\n"
          "                 [--mib N] [--repeats N] [--json]\n"
          "Rows are 1 to %d; inputs a multiple of 256. --json prints one JSON object a line.\n",
          DF2_QMM_BATCH);
  return 2;
}

static bool parse(options *chosen, int argc, char **argv) {
  int32_t n_in = 4096;
  int32_t mib = 128;
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
      good = parse_list(chosen->n_rows, value, DF2_QMM_BATCH);
    } else if (strcmp(name, "--types") == 0) {
      chosen->types = value;
    } else if (strcmp(name, "--isa") == 0) {
      chosen->isa = value;
    } else if (strcmp(name, "--inputs") == 0) {
      good = parse_number(&n_in, value, 1 << 20) && n_in % 256 == 0;
    } else if (strcmp(name, "--mib") == 0) {
      good = parse_number(&mib, value, 1 << 16);
    } else if (strcmp(name, "--repeats") == 0) {
      good = parse_number(&chosen->n_repeats, value, 1000);
    } else {
      good = false;
    }
  }
  chosen->n_in = n_in;
  chosen->mib = (size_t)mib;
  return good;
}

int main(int argc, char **argv) {
  options chosen = {.n_threads = {1, 2}, .n_rows = {1, 2, 4, 8, 16}, .n_repeats = 9};
  limits machine[MAX_LIST];
  if (!parse(&chosen, argc, argv)) {
    return usage();
  }
  const df2_qmm_kernel *any = choose_kernel(DF2_QMM_Q4_0, chosen.isa);
  if (!any) {
    fprintf(stderr, "bench_qmm: this build or this CPU has no kernels for %s; leave --isa out\n", chosen.isa);
    return 2;
  }
  measure_limits(machine, &chosen, any->isa);
  print_header(&chosen);
  bool all_right = true;
  int32_t n_types = 0;
  for (int type = 0; type < DF2_QMM_N_TYPES; type++) {
    if (is_listed(chosen.types, df2_qmm_type_name((df2_qmm_type)type))) {
      all_right = bench_type((df2_qmm_type)type, &chosen, machine) && all_right;
      n_types++;
    }
  }
  if (n_types == 0) {
    fprintf(stderr, "bench_qmm: no type is called %s; names are ggml's: q4_0, q4_K, f16 ...\n", chosen.types);
    return 2;
  }
  if (!all_right) {
    fprintf(stderr, "bench_qmm: a kernel's results differ from ref.c's; its times mean nothing\n");
  }
  return all_right ? 0 : 1;
}
