/* The matmul kernels as a library that Python can load: the product itself hides them. */
#include <stdlib.h>
#include <string.h>

#include "ops/common/cpu.h"
#include "ops/qmm/qmm.h"

#define EXPORT __attribute__((visibility("default")))

/* The kernel of an instruction set, or null if it was not compiled or this CPU cannot run it. */
static const df2_qmm_kernel *find_kernel(df2_qmm_type type, const char *isa) {
  uint32_t required = 0;
  const df2_qmm_kernel *kernel;
  for (int32_t i = 0; (kernel = df2_qmm_kernel_at(type, i, &required)) != NULL; i++) {
    if (strcmp(kernel->isa, isa) == 0) {
      return (required & ~df2_cpu_features()) == 0 ? kernel : NULL;
    }
  }
  return NULL;
}

/* Name of the instruction set at an index, "" if this CPU cannot run it, null after the last. */
EXPORT const char *qmm_isa_at(int32_t index) {
  uint32_t required = 0;
  const df2_qmm_kernel *kernel = df2_qmm_kernel_at(DF2_QMM_Q4_0, index, &required);
  if (!kernel) {
    return NULL;
  }
  return (required & ~df2_cpu_features()) == 0 ? kernel->isa : "";
}

static void multiply_batch(const df2_qmm_kernel *kernel, float *out, const char *packed, const float *rows,
                           int32_t n_rows, int64_t n_out, int64_t n_in, void *batch) {
  const float *pointers[DF2_QMM_BATCH];
  _Alignas(64) float sums[DF2_QMM_BATCH * DF2_QMM_TILE];
  for (int32_t row = 0; row < n_rows; row++) {
    pointers[row] = rows + row * n_in;
  }
  kernel->prepare(batch, pointers, n_rows, 0, n_in / DF2_QMM_BLOCK);
  for (int64_t tile = 0; tile < df2_qmm_n_tiles(n_out); tile++) {
    kernel->multiply(sums, packed + tile * (int64_t)df2_qmm_tile_bytes(kernel->type, n_in), batch, n_rows, n_in);
    for (int32_t row = 0; row < n_rows; row++) {
      for (int64_t i = 0; i < DF2_QMM_TILE && tile * DF2_QMM_TILE + i < n_out; i++) {
        out[row * n_out + tile * DF2_QMM_TILE + i] = sums[row * DF2_QMM_TILE + i];
      }
    }
  }
}

/* out [n_rows][n_out] = rows [n_rows][n_in] times weights [n_out][n_in], which are in ggml's layout of the named type.
 * Returns 0, -1 for a type or instruction set that there is not, -2 if memory ran out. */
EXPORT int32_t qmm_multiply(const char *type_name, const char *isa, float *out, const void *weights, const float *rows,
                            int64_t n_rows, int64_t n_out, int64_t n_in) {
  df2_qmm_type type = df2_qmm_type_of_name(type_name);
  const df2_qmm_kernel *kernel = type == DF2_QMM_N_TYPES ? NULL : find_kernel(type, isa);
  if (!kernel) {
    return -1;
  }
  int64_t n_tiles = df2_qmm_n_tiles(n_out);
  char *packed = aligned_alloc(64, df2_qmm_tile_bytes(type, n_in) * (size_t)n_tiles);
  void *batch = aligned_alloc(64, df2_qmm_batch_bytes(type, DF2_QMM_BATCH, n_in));
  if (!packed || !batch) {
    free(packed);
    free(batch);
    return -2;
  }
  for (int64_t tile = 0; tile < n_tiles; tile++) {
    df2_qmm_pack_tile(packed, type, weights, n_out, n_in, tile);
  }
  for (int64_t first = 0; first < n_rows; first += DF2_QMM_BATCH) {
    int64_t left = n_rows - first;
    multiply_batch(kernel, out + first * n_out, packed, rows + first * n_in,
                   (int32_t)(left < DF2_QMM_BATCH ? left : DF2_QMM_BATCH), n_out, n_in, batch);
  }
  free(packed);
  free(batch);
  return 0;
}
