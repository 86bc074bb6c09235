#include "ops/qmm/formats.h"

#include <string.h>

const df2_qmm_format df2_qmm_formats[DF2_QMM_N_TYPES] = {
#define DF2_QMM_FORMAT(type, name, codes, scales, bias, n_weights, n_bytes, layout, scale_at) \
  [DF2_QMM_##type] = {#name, codes, scales, bias, n_weights, n_bytes, scale_at},
#include "ops/qmm/formats.inc"
#undef DF2_QMM_FORMAT
};

const char *df2_qmm_type_name(df2_qmm_type type) {
  return df2_qmm_formats[type].name;
}

df2_qmm_type df2_qmm_type_of_name(const char *name) {
  for (int type = 0; type < DF2_QMM_N_TYPES; ++type) {
    if (strcmp(df2_qmm_formats[type].name, name) == 0) {
      return (df2_qmm_type)type;
    }
  }
  return DF2_QMM_N_TYPES;
}

int64_t df2_qmm_granularity(df2_qmm_type type) {
  return df2_qmm_formats[type].granularity;
}

size_t df2_qmm_row_bytes(df2_qmm_type type, int64_t n_in) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  return (size_t)(n_in / format->granularity * format->granule_bytes);
}

size_t df2_qmm_tile_bytes(df2_qmm_type type, int64_t n_in) {
  const df2_qmm_format *format = &df2_qmm_formats[type];
  const int64_t n_blocks = n_in / DF2_QMM_BLOCK;
  const int64_t super_bytes = n_blocks / 8 * df2_qmm_super_bytes(format->scales);
  const int64_t bytes =
      n_blocks * (df2_qmm_code_bytes(format->codes) + df2_qmm_scale_bytes(format->scales)) + super_bytes;
  return (size_t)((bytes + 63) / 64 * 64);
}

int64_t df2_qmm_n_tiles(int64_t n_out) {
  return (n_out + DF2_QMM_TILE - 1) / DF2_QMM_TILE;
}

size_t df2_qmm_batch_bytes(df2_qmm_type type, int32_t n_rows, int64_t n_in) {
  const int64_t bytes = n_in / DF2_QMM_BLOCK * df2_qmm_batch_block_bytes(df2_qmm_formats[type].codes, n_rows);
  return (size_t)((bytes + 63) / 64 * 64);
}
