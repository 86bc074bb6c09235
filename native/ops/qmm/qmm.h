/* Quantised weights times a few rows of activations: the matrix products of verification.
 *
 * Weights [n_out][n_in] are repacked once into tiles of DF2_QMM_TILE outputs; activations are quantised once per
 * product, in batches of at most DF2_QMM_BATCH rows. One call of a kernel multiplies one tile with one batch and
 * reads and unpacks every weight once for all its rows.
 *
 * The result, for output o and row r, over blocks b of 32 inputs, is by definition this sequence of float32
 * operations, each rounded once:
 *
 *   a[i]   = round(x[r][32 b + i] * (127 / amax)),  da = amax * (1 / 127),  amax = max |x[r][32 b + i]|
 *   sum    = fma(scale(o, b) * da, float(sum over i of code(o, 32 b + i) * a[i]), sum)
 *   sum    = fma(minimum(o, b), da * float(sum over i of a[i]), sum)         for types that have minima
 *
 * The inner sums are integers, hence exact. Types whose scales cover 16 weights take the first line twice, once for
 * each half of the block. Float types (f16, bf16, f32) take sum = fma(w, x, sum), input by input, in order. Nothing
 * depends on the other rows, on the number of threads, or on the instruction set: every kernel gives the same bits as
 * ref.c, for every batch size.
 *
 * A row whose block holds a NaN or an infinity yields NaN. Blocks with amax < 2^-100 count as zero.
 *
 * No function here allocates, starts a thread or keeps state. Distinct outputs may be computed on distinct threads. */
#ifndef DF2_OPS_QMM_H
#define DF2_OPS_QMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DF2_QMM_TILE 16  /* outputs in a tile */
#define DF2_QMM_BATCH 16 /* activation rows in a batch, at most */
#define DF2_QMM_BLOCK 32 /* inputs that share an activation scale */

/* The types of ggml that have kernels: DF2_QMM_Q4_0, ..., one for each row of formats.inc. */
typedef enum df2_qmm_type {
#define DF2_QMM_FORMAT(type, ...) DF2_QMM_##type,
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT
  DF2_QMM_N_TYPES
} df2_qmm_type;

/* "q4_0", ...; and the type of a name, or DF2_QMM_N_TYPES. */
const char *df2_qmm_type_name(df2_qmm_type type);
df2_qmm_type df2_qmm_type_of_name(const char *name);

/* The number of inputs must be a multiple of this: 32 or 256. */
int64_t df2_qmm_granularity(df2_qmm_type type);

/* Bytes of n_in weights in ggml's own layout, and of a packed tile. n_in is a multiple of the granularity. */
size_t df2_qmm_row_bytes(df2_qmm_type type, int64_t n_in);
size_t df2_qmm_tile_bytes(df2_qmm_type type, int64_t n_in);

/* Tiles of n_out outputs; the last one may be padded with zero weights. */
int64_t df2_qmm_n_tiles(int64_t n_out);

/* Packs tile `tile` of weights [n_out][n_in], given as ggml stores them (rows of df2_qmm_row_bytes, back to back), to
 * packed + tile * df2_qmm_tile_bytes. Both pointers are the matrix's; packed is aligned to 64 bytes. */
void df2_qmm_pack_tile(void *packed, df2_qmm_type type, const void *weights, int64_t n_out, int64_t n_in, int64_t tile);

/* The way back, bit for bit: writes one row of weights, df2_qmm_row_bytes as ggml stores them, from output `output`
 * (0 to DF2_QMM_TILE - 1) of a packed tile. */
void df2_qmm_unpack_row(void *row, df2_qmm_type type, const void *tile, int64_t n_in, int64_t output);

/* Bytes of a batch of n_rows quantised rows, a multiple of 64. */
size_t df2_qmm_batch_bytes(df2_qmm_type type, int32_t n_rows, int64_t n_in);

/* One instruction set's code for one type. A batch made by one kernel's prepare is for that kernel alone. */
typedef struct df2_qmm_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */
  df2_qmm_type type;

  /* Quantises blocks [first_block, last_block) of n_rows rows, 1 to DF2_QMM_BATCH, each of n_in floats, into the batch.
   * Threads may share a batch block by block. */
  void (*prepare)(void *batch, const float *const *rows, int32_t n_rows, int64_t first_block, int64_t last_block);

  /* sums[row][DF2_QMM_TILE] = the tile's outputs for each row of the batch. sums is aligned to 64 bytes. */
  void (*multiply)(float *sums, const void *tile, const void *batch, int32_t n_rows, int64_t n_in);
} df2_qmm_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null, since ref.c needs none of them. */
const df2_qmm_kernel *df2_qmm_find(df2_qmm_type type, uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_qmm_kernel *df2_qmm_kernel_at(df2_qmm_type type, int32_t index, uint32_t *required_features);

#ifdef __cplusplus
}
#endif

#endif
