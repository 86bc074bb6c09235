/* The definition in double precision, and the kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#define DF2_ROWS 1
#include "ops/delta_net/tile.inc"

size_t df2_delta_net_workspace_bytes(int32_t size) {
  return workspace_floats(size) * sizeof(float);
}

void df2_delta_net_ref_f64(double *out, double *state, const df2_delta_params *params, const df2_delta_token *token) {
  const int32_t size = params->size;
  for (int32_t j = 0; j < size; ++j) {
    double *row = state + (size_t)j * (size_t)size;
    double product = 0.0;
    for (int32_t i = 0; i < size; ++i) {
      row[i] *= exp((double)token->gate[params->gate_is_vector ? i : 0]);
      product += row[i] * (double)token->key[i];
    }
    const double change = ((double)token->value[j] - product) * (double)token->beta;
    double sum = 0.0;
    for (int32_t i = 0; i < size; ++i) {
      row[i] += change * (double)token->key[i];
      sum += token->query != NULL ? row[i] * (double)token->query[i] : 0.0;
    }
    if (token->query != NULL) {
      out[j] = sum * (double)params->scale;
    }
  }
}
