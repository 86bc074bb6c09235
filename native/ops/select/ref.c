#include <math.h>

#include "ops/select/select.h"

/* Long enough for the compiler to vectorise the threshold test, short enough that a hit costs little to locate. */
enum { CHUNK = 64 };

static float ordered(float value) {
  return isnan(value) ? -INFINITY : value;
}

/* Inserts into a list sorted best first; equal values keep their order of arrival, i.e. of index. */
static void insert(int32_t *ids, float *values, int64_t count, int64_t id, float value) {
  int64_t at = count;
  while (at > 0 && values[at - 1] < value) {
    ids[at] = ids[at - 1];
    values[at] = values[at - 1];
    --at;
  }
  ids[at] = (int32_t)id;
  values[at] = value;
}

void df2_select_topk_f32_ref(int32_t *ids, float *values, const float *logits, int64_t n, int64_t k) {
  for (int64_t i = 0; i < k; ++i) {
    insert(ids, values, i, i, ordered(logits[i]));
  }
  int64_t i = k;
  while (i < n) {
    const int64_t end = i + CHUNK < n ? i + CHUNK : n;
    const float threshold = values[k - 1];
    int any = 0;
    for (int64_t j = i; j < end; ++j) {
      any |= logits[j] > threshold;
    }
    for (int64_t j = i; any && j < end; ++j) {
      if (logits[j] > values[k - 1]) {
        insert(ids, values, k - 1, j, logits[j]);
      }
    }
    i = end;
  }
}

int64_t df2_select_scores_f32_ref(float *scores, const float *logits, const float *condition, const float *successors,
                                  int64_t k, int64_t rank) {
  int64_t best = 0;
  for (int64_t c = 0; c < k; ++c) {
    float transition = 0.0f;
    for (int64_t r = 0; r < rank; ++r) {
      transition += condition[r] * successors[c * rank + r];
    }
    scores[c] = logits[c] + transition;
    if (scores[c] > scores[best]) {
      best = c;
    }
  }
  return best;
}
