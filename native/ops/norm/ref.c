/* The definition in double precision, and the kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#include "ops/norm/tile.inc"

void df2_norm_ref_f64(double *row, const float *weight, float eps, int64_t n_embd) {
  double squares = 0.0;
  for (int64_t c = 0; c < n_embd; ++c) {
    squares += row[c] * row[c];
  }
  const double length = sqrt(squares / (double)n_embd + (double)eps);
  for (int64_t c = 0; c < n_embd; ++c) {
    row[c] = row[c] / length * (double)weight[c];
  }
}
