/* Candidate selection (DFlash2): the k best logits of a position, and a walk along the positions that scores each
 * one's candidates by the token chosen before it.
 *
 *   score(i, c) = logit(i, c) + sum over r of predecessor[previous][r] * gate[i][r] * successor[ids(i, c)][r]
 *   q(i, c)     = exp((score(i, c) - largest) / t) / sum over c of the same
 *
 * `previous` is the token chosen at position i - 1, the anchor at position 0; t is the temperature, 1 for greedy walks.
 * The sums have a fixed order (16 partial sums, of every 16th summand, added up by halves), so every instruction set
 * gives the same bits. exp has a relative error below 2e-7 and is 0 below -87.
 *
 * Kernels own no memory and start no threads. Calls that write to different memory may run at the same time. */
#ifndef DF2_OPS_SELECT_H
#define DF2_OPS_SELECT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct df2_select_walk {
  int64_t n_positions, k, rank; /* n_positions >= 0, k >= 1, rank >= 0 */
  const int32_t *ids;           /* [n_positions][k], rows of the codebooks */
  const float *logits;          /* [n_positions][k] */
  const float *gate;            /* [rank] of position i at gate + i * gate_stride */
  int64_t gate_stride;          /* in floats */

  /* Codebooks of any storage type: writes row `row`, [rank] floats, to `out`, which is aligned to 64 bytes. Called with
   * the anchor and with `ids` only, on the calling thread, about n_positions * (k + 1) times. */
  void (*read_row)(float *out, const void *codebook, int64_t row);
  const void *predecessor, *successor;

  int32_t anchor;
  float temperature;     /* finite; greedy unless above 0 */
  const float *uniforms; /* [n_positions] in [0, 1); null for greedy walks, which do not read them */

  int32_t *path;    /* [n_positions]: the chosen ids */
  float *scores;    /* [n_positions][k] */
  float *q;         /* [n_positions][k] */
  float *path_q;    /* [n_positions]: q of the chosen candidates */
  float *workspace; /* [df2_select_walk_workspace_floats], aligned to 64 bytes; need not be initialised */
} df2_select_walk;

size_t df2_select_walk_workspace_floats(int64_t k, int64_t rank);

typedef struct df2_select_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* The k largest of logits[n], best first, the lower index first among equals. NaN counts as minus infinity, and is
   * returned as such. ids, values: [k]; 1 <= k <= n. Reads the logits once, in order; n * k steps at most (ascending
   * logits). */
  void (*topk)(int32_t *ids, float *values, const float *logits, int64_t n, int64_t k);

  /* A greedy walk takes the candidate with the largest score, the first among equals. A sampling one takes the first
   * whose cumulative q (summed in order, in float32) exceeds the position's uniform number, or the last with q > 0 if
   * rounding leaves none.
   *
   * Scores need not be finite. A NaN counts as minus infinity, and is returned as such. If the largest score is
   * infinite, of either sign, the candidates that have it share q equally and the others get 0; so in a position with
   * no score above minus infinity, all have q = 1 / k. Otherwise minus infinity has q = 0. */
  void (*walk)(const df2_select_walk *args);
} df2_select_kernel;

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_select_kernel *df2_select_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_select_kernel *df2_select_kernel_at(int32_t index, uint32_t *required_features);

#ifdef __cplusplus
}
#endif

#endif
