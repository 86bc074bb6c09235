#include <math.h>

#include "ops/argmax/argmax.h"

enum { CHUNK = 64 };

int64_t df2_argmax_f32_ref(const float *values, int64_t n) {
  int64_t best = 0;
  float threshold = -INFINITY;
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t end = i + CHUNK < n ? i + CHUNK : n;
    int any = 0;
    for (int64_t j = i; j < end; ++j) {
      any |= values[j] > threshold;
    }
    for (int64_t j = i; any && j < end; ++j) {
      if (values[j] > threshold) {
        threshold = values[j];
        best = j;
      }
    }
  }
  return best;
}
