/* The definition in double precision, and the kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#define DF2_KEY_ROWS 3
#define DF2_DIRECT_ROWS 6
#define DF2_PARTS_AT_ONCE 8
#define DF2_VALUE_VECTORS 1
#include "ops/attention/tile.inc"

size_t df2_attention_workspace_bytes(int32_t n_rows, int32_t key_size, int32_t value_size) {
  const size_t row_floats = (size_t)(SPAN + round_up(key_size, DF2_PARTS));
  const size_t floats = (size_t)widened_floats(key_size, value_size) + (size_t)n_rows * row_floats;
  return (floats * sizeof(float) + 63) / 64 * 64;
}

void df2_attention_clear(float *partial, int32_t value_size) {
  memset(partial, 0, df2_attention_partial_floats(value_size) * sizeof(float));
  partial[DF2_ATTENTION_M] = -INFINITY;
}

static double element(const df2_attention_cache *cache, int64_t key, int32_t i) {
  const uint8_t *vector = (const uint8_t *)cache->data + (size_t)key * cache->stride_bytes;
  return (double)load_elements(cache->type, vector, i);
}

static double score(const df2_attention_params *params, const df2_attention_row *row, const df2_attention_cache *keys,
                    int64_t key) {
  double product = 0.0;
  for (int32_t i = 0; i < keys->size; ++i) {
    product += (double)row->query[i] * element(keys, key, i);
  }
  double s = product * (double)params->scale;
  if (params->softcap != 0.0f) {
    s = (double)params->softcap * tanh(s / (double)params->softcap);
  }
  return row->mask != NULL ? s + (double)row->slope * (double)vf_set1_f16((const uint8_t *)(row->mask + key)) : s;
}

void df2_attention_ref_f64(double *out, const df2_attention_params *params, const df2_attention_row *row,
                           const df2_attention_cache *keys, const df2_attention_cache *values, int64_t n_keys,
                           const float *sink) {
  double m = sink != NULL ? (double)*sink : -INFINITY;
  for (int64_t key = 0; key < n_keys; ++key) {
    m = fmax(m, score(params, row, keys, key));
  }
  double sum = sink != NULL ? exp((double)*sink - m) : 0.0;
  for (int32_t d = 0; d < values->size; ++d) {
    out[d] = 0.0;
  }
  for (int64_t key = 0; key < n_keys && m > -INFINITY; ++key) {
    const double weight = exp(score(params, row, keys, key) - m);
    if (weight == 0.0) {
      continue;
    }
    sum += weight;
    for (int32_t d = 0; d < values->size; ++d) {
      out[d] += weight * element(values, key, d);
    }
  }
  for (int32_t d = 0; d < values->size && sum > 0.0; ++d) {
    out[d] /= sum;
  }
}
