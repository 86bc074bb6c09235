/* Candidate selection (DFlash2): the k best logits of a position, and the selector's scores for them.
 *
 *   score(c) = logit(c) + sum over r of predecessor[previous][r] * gate[r] * successor[c][r]
 *
 * where gate = W h of the position and `previous` is the token chosen one position earlier. */
#ifndef DF2_OPS_SELECT_H
#define DF2_OPS_SELECT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The k largest of logits[n], best first, the lower index first among equals. ids, values: [k]. NaN counts as minus
 * infinity. Requires 1 <= k <= n. */
void df2_select_topk_f32_ref(int32_t *ids, float *values, const float *logits, int64_t n, int64_t k);

/* scores[k] from logits[k], condition[rank] (predecessor row times gate) and successors[k][rank]. Returns the index
 * of the largest score, the lowest among equals. */
int64_t df2_select_scores_f32_ref(float *scores, const float *logits, const float *condition, const float *successors,
                                  int64_t k, int64_t rank);

#ifdef __cplusplus
}
#endif

#endif
