/* Every matmul kernel that was compiled and that this CPU runs, against ref.c, bit for bit; and what they must leave
 * alone. With --dispatch: prints which kernel each type would get. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "isas.h"
#include "ops/common/cpu.h"
#include "ops/qmm/formats.h"
#include "qmm_data.h"
#include "watch.h"

typedef struct shape {
  int64_t n_in, n_out;
} shape;

/* Weights and 16 rows, and what ref.c makes of them. */
typedef struct problem {
  df2_qmm_type type;
  shape shape;
  bool is_special;
  int64_t n_tiles;
  test_buffer packed;
  uint64_t packed_hash;
  test_buffer row_memory;
  const float *rows[DF2_QMM_BATCH];
  float *expected; /* [tile][row][DF2_QMM_TILE] */
} problem;

typedef struct call {
  const df2_qmm_kernel *kernel;
  void *batch;
  const float *const *rows;
  float *sums;
  const void *tile;
  int32_t n_rows;
  int64_t n_in, first_block, last_block;
} call;

static bool has_sme;

static void prepare(void *context) {
  const call *c = context;
  c->kernel->prepare(c->batch, c->rows, c->n_rows, c->first_block, c->last_block);
}

static void multiply(void *context) {
  const call *c = context;
  c->kernel->multiply(c->sums, c->tile, c->batch, c->n_rows, c->n_in);
}

static void watched(void (*body)(void *), call *c, const char *name) {
  const char *broken = test_watched_call(body, c, has_sme);
  test_check(broken == NULL, "%s: %s", name, broken);
}

static uint64_t hash_bytes(const uint8_t *bytes, size_t n) {
  uint64_t hash = 1;
  for (size_t i = 0; i < n; ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return hash;
}

static const df2_qmm_kernel *reference(df2_qmm_type type) {
  uint32_t features;
  for (int32_t i = 0;; ++i) {
    const df2_qmm_kernel *kernel = df2_qmm_kernel_at(type, i, &features);
    if (strcmp(kernel->isa, "ref") == 0) {
      return kernel;
    }
  }
}

/* Packing a tile must touch that tile only. */
static void pack(problem *p, const uint8_t *weights) {
  const size_t tile_bytes = df2_qmm_tile_bytes(p->type, p->shape.n_in);
  p->n_tiles = df2_qmm_n_tiles(p->shape.n_out);
  p->packed = test_buffer_new((size_t)p->n_tiles * tile_bytes, 64);
  for (int64_t tile = p->n_tiles - 1; tile >= 0; --tile) {
    df2_qmm_pack_tile(p->packed.data, p->type, weights, p->shape.n_out, p->shape.n_in, tile);
    test_check(test_buffer_untouched(&p->packed, 0, (size_t)tile * tile_bytes), "packing wrote before its tile");
  }
  test_check(test_buffer_guards_intact(&p->packed), "packing wrote outside the matrix");
  p->packed_hash = hash_bytes(p->packed.data, p->packed.size);
}

static void make_rows(problem *p, test_random *random) {
  /* rows one float longer than they need to be: of no particular alignment */
  const int64_t stride = p->shape.n_in + 1;
  p->row_memory = test_buffer_new((size_t)(DF2_QMM_BATCH * stride) * sizeof(float), sizeof(float));
  float *first = (float *)(void *)p->row_memory.data + 1;
  for (int32_t r = 0; r < DF2_QMM_BATCH; ++r) {
    qmm_random_row(random, first + r * stride, p->shape.n_in, r, p->is_special);
    p->rows[r] = first + r * stride;
  }
}

/* Runs a kernel on rows[0..n_rows) and compares with `expected`, [tile][row] from `first_row` on. */
static void check_kernel(const problem *p, const df2_qmm_kernel *kernel, int32_t first_row, int32_t n_rows) {
  const int64_t n_blocks = p->shape.n_in / DF2_QMM_BLOCK;
  test_buffer batch = test_buffer_new(df2_qmm_batch_bytes(p->type, n_rows, p->shape.n_in), 64);
  test_buffer sums = test_buffer_new((size_t)n_rows * DF2_QMM_TILE * sizeof(float), 64);
  call c = {.kernel = kernel, .batch = batch.data, .rows = p->rows + first_row, .n_rows = n_rows};
  c.n_in = p->shape.n_in;
  c.sums = (float *)(void *)sums.data;
  /* in two parts, the second one first */
  c.first_block = n_blocks / 3;
  c.last_block = n_blocks;
  watched(prepare, &c, "prepare");
  c.last_block = c.first_block;
  c.first_block = 0;
  watched(prepare, &c, "prepare");
  test_check(test_buffer_guards_intact(&batch), "prepare wrote outside the batch");
  const uint64_t batch_hash = hash_bytes(batch.data, batch.size);
  for (int64_t tile = 0; tile < p->n_tiles; ++tile) {
    c.tile = p->packed.data + (size_t)tile * df2_qmm_tile_bytes(p->type, p->shape.n_in);
    memset(sums.data, TEST_FILL, sums.size);
    watched(multiply, &c, "multiply");
    const float *expected = p->expected + (tile * DF2_QMM_BATCH + first_row) * DF2_QMM_TILE;
    const int64_t at = test_first_difference(c.sums, expected, n_rows * DF2_QMM_TILE);
    test_check(at < 0, "row %d of %d, output %d of tile %d: %a, not %a", (int)(at / DF2_QMM_TILE), (int)n_rows,
               (int)(at % DF2_QMM_TILE), (int)tile, at < 0 ? 0.0 : (double)c.sums[at],
               at < 0 ? 0.0 : (double)expected[at]);
  }
  test_check(test_buffer_guards_intact(&sums), "multiply wrote outside the sums");
  test_check(test_buffer_guards_intact(&batch) && hash_bytes(batch.data, batch.size) == batch_hash,
             "multiply wrote to the batch");
  test_buffer_free(&sums);
  test_buffer_free(&batch);
}

/* Once per kernel: called by code that has ZA in use. */
static void check_with_za(const problem *p, const df2_qmm_kernel *kernel) {
  const int32_t n_rows = DF2_QMM_BATCH;
  test_buffer batch = test_buffer_new(df2_qmm_batch_bytes(p->type, n_rows, p->shape.n_in), 64);
  test_buffer sums = test_buffer_new((size_t)n_rows * DF2_QMM_TILE * sizeof(float), 64);
  call c = {.kernel = kernel, .batch = batch.data, .rows = p->rows, .n_rows = n_rows, .n_in = p->shape.n_in};
  c.sums = (float *)(void *)sums.data;
  c.tile = p->packed.data;
  c.last_block = p->shape.n_in / DF2_QMM_BLOCK;
  const char *broken = test_watched_call_with_za(prepare, &c);
  test_check(broken == NULL, "prepare, caller with ZA: %s", broken);
  broken = test_watched_call_with_za(multiply, &c);
  test_check(broken == NULL, "multiply, caller with ZA: %s", broken);
  test_check(test_first_difference(c.sums, p->expected, n_rows * DF2_QMM_TILE) < 0, "caller with ZA: wrong sums");
  test_buffer_free(&sums);
  test_buffer_free(&batch);
}

static void compute_expected(problem *p) {
  const df2_qmm_kernel *ref = reference(p->type);
  void *batch = aligned_alloc(64, df2_qmm_batch_bytes(p->type, DF2_QMM_BATCH, p->shape.n_in));
  const size_t tile_bytes = df2_qmm_tile_bytes(p->type, p->shape.n_in);
  p->expected = aligned_alloc(64, (size_t)p->n_tiles * DF2_QMM_BATCH * DF2_QMM_TILE * sizeof(float));
  ref->prepare(batch, p->rows, DF2_QMM_BATCH, 0, p->shape.n_in / DF2_QMM_BLOCK);
  for (int64_t tile = 0; tile < p->n_tiles; ++tile) {
    float *sums = p->expected + tile * DF2_QMM_BATCH * DF2_QMM_TILE;
    ref->multiply(sums, p->packed.data + (size_t)tile * tile_bytes, batch, DF2_QMM_BATCH, p->shape.n_in);
  }
  free(batch);
}

/* What qmm.h says about rows with NaN or infinity, and that the others are left alone by them. */
static void check_special(const problem *p) {
  if (df2_qmm_is_float(df2_qmm_formats[p->type].codes)) {
    return;
  }
  for (int32_t r = 0; r < DF2_QMM_BATCH; ++r) {
    int n_nan = 0;
    for (int o = 0; o < DF2_QMM_TILE; ++o) {
      const float value = p->expected[r * DF2_QMM_TILE + o];
      n_nan += value != value;
    }
    if (qmm_row_is_invalid(r)) {
      test_check(n_nan == DF2_QMM_TILE, "row %d has NaN or infinity, but %d outputs have a value", (int)r,
                 DF2_QMM_TILE - n_nan);
    } else if (qmm_row_is_ordinary(r)) {
      test_check(n_nan < DF2_QMM_TILE, "row %d has no NaN, but all outputs are", (int)r);
    }
  }
}

static problem make_problem(const test_options *options, df2_qmm_type type, shape shape, bool is_special) {
  problem p = {.type = type, .shape = shape, .is_special = is_special};
  test_random random = test_random_for(options->seed, df2_qmm_type_name(type),
                                       (uint64_t)(shape.n_in * 1000 + shape.n_out * 2 + is_special));
  test_case("%s n_in=%d n_out=%d%s", df2_qmm_type_name(type), (int)shape.n_in, (int)shape.n_out,
            is_special ? " special" : "");
  test_buffer weights = test_buffer_new((size_t)shape.n_out * df2_qmm_row_bytes(type, shape.n_in), 1);
  qmm_random_weights(&random, weights.data, type, shape.n_out, shape.n_in, is_special);
  pack(&p, weights.data);
  test_buffer_free(&weights);
  make_rows(&p, &random);
  compute_expected(&p);
  if (is_special) {
    check_special(&p);
  }
  return p;
}

static void free_problem(problem *p) {
  test_buffer_free(&p->packed);
  test_buffer_free(&p->row_memory);
  free(p->expected);
}

/* The same instruction sets for every type. */
static const char *isa_at(int32_t index, uint32_t *features) {
  const df2_qmm_kernel *kernel = df2_qmm_kernel_at(DF2_QMM_Q4_0, index, features);
  return kernel != NULL ? kernel->isa : NULL;
}

static void check_problem(const test_options *options, const problem *p) {
  uint32_t features;
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    const df2_qmm_kernel *kernel = df2_qmm_kernel_at(p->type, i, &features);
    test_case("%s %s n_in=%d n_out=%d%s", df2_qmm_type_name(p->type), kernel->isa, (int)p->shape.n_in,
              (int)p->shape.n_out, p->is_special ? " special" : "");
    /* ref.c is slow and has no code of its own for any number of rows */
    const bool few = options->quick || strcmp(kernel->isa, "ref") == 0;
    for (int32_t n_rows = 1; n_rows <= DF2_QMM_BATCH; n_rows = few && n_rows >= 5 ? n_rows + 5 : n_rows + 1) {
      check_kernel(p, kernel, 0, n_rows);
      check_kernel(p, kernel, DF2_QMM_BATCH - n_rows, n_rows);
    }
    for (int32_t r = 1; r < DF2_QMM_BATCH - 1; r += few ? 6 : 1) {
      check_kernel(p, kernel, r, 1);
    }
    if (has_sme) {
      check_with_za(p, kernel);
    }
  }
  test_check(hash_bytes(p->packed.data, p->packed.size) == p->packed_hash, "a kernel wrote to the weights");
}

static void check_types(const test_options *options) {
  static const shape all[] = {{32, 1},   {32, 16}, {64, 15},   {96, 17},   {256, 33},
                              {512, 16}, {768, 1}, {1024, 17}, {1536, 33}, {2304, 16}};
  static const shape quick[] = {{64, 17}, {96, 1}, {256, 16}, {512, 15}};
  const shape *shapes = options->quick ? quick : all;
  const int n_shapes = options->quick ? (int)(sizeof quick / sizeof quick[0]) : (int)(sizeof all / sizeof all[0]);
  uint64_t checksum = 0;
  for (int type = 0; type < DF2_QMM_N_TYPES; ++type) {
    for (int i = 0; i < n_shapes; ++i) {
      if (shapes[i].n_in % df2_qmm_granularity((df2_qmm_type)type) != 0) {
        continue;
      }
      /* the quick test takes special values once per type */
      for (int is_special = options->quick ? shapes[i].n_in == 512 : 0; is_special < 2; ++is_special) {
        problem p = make_problem(options, (df2_qmm_type)type, shapes[i], is_special != 0);
        check_problem(options, &p);
        checksum = test_checksum(checksum, p.expected, p.n_tiles * DF2_QMM_BATCH * DF2_QMM_TILE);
        free_problem(&p);
        if (options->quick) {
          break;
        }
      }
    }
  }
  printf("checksum of ref's results: %016" PRIx64 "\n", checksum);
}

int main(int argc, char **argv) {
  test_options options;
  test_start(&options, argc, argv);
  has_sme = (df2_cpu_features() & DF2_CPU_SME2) != 0;
  if (options.dispatch) {
    for (int type = 0; type < DF2_QMM_N_TYPES; ++type) {
      const df2_qmm_kernel *kernel = df2_qmm_find((df2_qmm_type)type, df2_cpu_features());
      printf("%s %s\n", df2_qmm_type_name((df2_qmm_type)type), kernel->isa);
    }
    return 0;
  }
  if (!test_isas_print(&options, isa_at)) {
    return 1;
  }
  check_types(&options);
  return test_finish("qmm");
}
