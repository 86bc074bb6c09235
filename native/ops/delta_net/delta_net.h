/* Gated delta net: a recurrent state per head, updated token by token.
 *
 * The state of a head is M[size rows j][size columns i], float32, rows contiguous (as ggml keeps it). A token with
 * query q, key k, value v, gate g (one number, or one per column: KDA) and beta does
 *
 *   M[j][i] *= exp(g[i]);   d[j] = (v[j] - <M[j], k>) * beta;   M[j][i] += d[j] * k[i];   out[j] = scale * <M[j], q>
 *
 * which is computed, so that both sums are of the same M, as
 *
 *   d[j]    = (v[j] - <M[j], exp(g) k>) * beta
 *   out[j]  = scale * (<M[j], exp(g) q> + d[j] * <k, q>)
 *   M[j][i] = M[j][i] * exp(g[i]) + d[j] * k[i]
 *
 * Source of the formula: Yang, Kautz, Hatamizadeh, Gated Delta Networks (arXiv 2412.06464); of gates per column: Kimi
 * Linear (arXiv 2510.26692).
 *
 * A sum is 16 sums, of columns 0, 16, ..., of columns 1, 17, ... and so on, each in order and with fused multiply-adds;
 * then halves are added twice (0 + 8, ..., 0 + 4, ...), then neighbours: (0 + 1) + (2 + 3). Sizes that are no multiple
 * of 16 are computed as if zeros followed. d[j] and out[j] are fused likewise where + follows a product. Rows of a
 * state know nothing of each other. Results are therefore the same bits on every instruction set, on any number of
 * threads that share the rows, and for any number of tokens in a call.
 *
 * Gates above 88 count as 88; exp is 0 below -87. A NaN makes NaNs of what is computed from it.
 *
 * What it costs, per head: 8 size^2 bytes are read and written once in a call, for any number of tokens up to
 * DF2_DELTA_NET_TOKENS; and a token takes 7 size^2 operations, which are 4 instructions (3 of them fused) per vector of
 * a row. A state of 128 x 128 is 64 KiB. */
#ifndef DF2_OPS_DELTA_NET_H
#define DF2_OPS_DELTA_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DF2_DELTA_NET_MAX_SIZE 1024

/* Longer calls are computed in runs of so many tokens. */
#define DF2_DELTA_NET_TOKENS 16

typedef struct df2_delta_token {
  const float *query; /* [size]; null: no output is wanted */
  const float *key;   /* [size] */
  const float *value; /* [size] */
  const float *gate;  /* [1] or [size] */
  float beta;
  float *output; /* [size]; unused without a query */
} df2_delta_token;

typedef struct df2_delta_params {
  int32_t size; /* of keys and of values: 1 to DF2_DELTA_NET_MAX_SIZE */
  bool gate_is_vector;
  float scale;
} df2_delta_params;

typedef struct df2_delta_net_kernel {
  const char *isa; /* a name DF2_FORCE_ISA takes */

  /* Rows [first_row, end_row) of one head, so that threads may share it; of each token's value and output only these
   * are touched. state_out gets the state after the first n_stored tokens, 0 to n_tokens; it may be state_in, or null:
   * none is written. state_in, state_out: [size][size]. Nothing needs an alignment beyond float's, but for workspace:
   * df2_delta_net_workspace_bytes, aligned to 64 bytes, each thread's own. */
  void (*run)(float *state_out, const float *state_in, const df2_delta_params *params, const df2_delta_token *tokens,
              int32_t n_tokens, int32_t n_stored, int32_t first_row, int32_t end_row, void *workspace);
} df2_delta_net_kernel;

/* Scratch memory of a call, for any number of tokens. */
size_t df2_delta_net_workspace_bytes(int32_t size);

/* The best kernel for these CPU features (ops/common/cpu.h); never null. */
const df2_delta_net_kernel *df2_delta_net_find(uint32_t cpu_features);

/* All kernels that were compiled, best first: index 0, 1, ... until null. */
const df2_delta_net_kernel *df2_delta_net_kernel_at(int32_t index, uint32_t *required_features);

/* The definition in double precision, for tests: one token on all rows. state: [size][size], updated; out: [size],
 * written if the token has a query. */
void df2_delta_net_ref_f64(double *out, double *state, const df2_delta_params *params, const df2_delta_token *token);

#ifdef __cplusplus
}
#endif

#endif
