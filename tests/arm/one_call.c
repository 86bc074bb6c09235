/* Calls one kernel once, for instruction_counts.py: one_call TYPE ISA N_ROWS N_IN. Codes are zeros, which cost the
 * same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/common/cpu.h"
#include "ops/qmm/qmm.h"

static const df2_qmm_kernel *find(df2_qmm_type type, const char *isa) {
  uint32_t features;
  const df2_qmm_kernel *kernel;
  for (int32_t i = 0; (kernel = df2_qmm_kernel_at(type, i, &features)) != NULL; ++i) {
    if (strcmp(kernel->isa, isa) == 0 && (features & ~df2_cpu_features()) == 0) {
      return kernel;
    }
  }
  return NULL;
}

static void *zeros(size_t n) {
  void *memory = aligned_alloc(64, (n + 63) / 64 * 64);
  memset(memory, 0, (n + 63) / 64 * 64);
  return memory;
}

int main(int argc, char **argv) {
  const df2_qmm_type type = argc == 5 ? df2_qmm_type_of_name(argv[1]) : DF2_QMM_N_TYPES;
  const df2_qmm_kernel *kernel = type != DF2_QMM_N_TYPES ? find(type, argv[2]) : NULL;
  if (kernel == NULL) {
    fprintf(stderr, "usage: one_call TYPE ISA N_ROWS N_IN, with an instruction set that can run here\n");
    return 2;
  }
  const int32_t n_rows = atoi(argv[3]);
  const int64_t n_in = atoi(argv[4]);
  const float *rows[DF2_QMM_BATCH];
  for (int32_t r = 0; r < DF2_QMM_BATCH; ++r) {
    rows[r] = zeros((size_t)n_in * sizeof(float));
  }
  void *batch = zeros(df2_qmm_batch_bytes(type, n_rows, n_in));
  float *sums = zeros((size_t)n_rows * DF2_QMM_TILE * sizeof(float));
  void *tile = zeros(df2_qmm_tile_bytes(type, n_in));
  kernel->prepare(batch, rows, n_rows, 0, n_in / DF2_QMM_BLOCK);
  kernel->multiply(sums, tile, batch, n_rows, n_in);
  return 0;
}
