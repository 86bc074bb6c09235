/* Attends once, for instruction_counts.py: one_attention TYPE ISA N_ROWS SIZE N_KEYS. Values are zeros, which cost the
 * same. All else that it does is the same for any number of keys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/attention/attention.h"
#include "ops/common/cpu.h"

#define MAX_KEYS DF2_ATTENTION_SPAN

static const df2_attention_kernel *find(const char *isa) {
  uint32_t features;
  const df2_attention_kernel *kernel;
  for (int32_t i = 0; (kernel = df2_attention_kernel_at(i, &features)) != NULL; ++i) {
    if (strcmp(kernel->isa, isa) == 0 && (features & ~df2_cpu_features()) == 0) {
      return kernel;
    }
  }
  return NULL;
}

static int find_type(const char *name) {
  static const char *const names[DF2_ATTENTION_N_TYPES] = {"f32",  "f16",  "bf16", "q8_0",  "q4_0",
                                                           "q4_1", "q5_0", "q5_1", "iq4_nl"};
  int type = 0;
  while (type < DF2_ATTENTION_N_TYPES && strcmp(names[type], name) != 0) {
    ++type;
  }
  return type;
}

static void *zeros(size_t n) {
  void *memory = aligned_alloc(64, (n + 63) / 64 * 64);
  memset(memory, 0, (n + 63) / 64 * 64);
  return memory;
}

int main(int argc, char **argv) {
  const int type = argc == 6 ? find_type(argv[1]) : DF2_ATTENTION_N_TYPES;
  const df2_attention_kernel *kernel = type != DF2_ATTENTION_N_TYPES ? find(argv[2]) : NULL;
  if (kernel == NULL) {
    fprintf(stderr, "usage: one_attention TYPE ISA N_ROWS SIZE N_KEYS, with an instruction set that can run here\n");
    return 2;
  }
  const int32_t n_rows = atoi(argv[3]);
  const int32_t size = atoi(argv[4]);
  const size_t stride_bytes = 4 * (size_t)size; /* room enough for any type */
  const df2_attention_params params = {1.0f, 0.0f};
  const df2_attention_cache cache = {(df2_attention_type)type, size, zeros(MAX_KEYS * stride_bytes), stride_bytes};
  df2_attention_row *rows = zeros((size_t)n_rows * sizeof(df2_attention_row));
  for (int32_t r = 0; r < n_rows; ++r) {
    rows[r] = (df2_attention_row){zeros((size_t)size * sizeof(float)), zeros(MAX_KEYS * sizeof(uint16_t)), 1.0f};
  }
  float *partials = zeros((size_t)n_rows * df2_attention_partial_floats(size) * sizeof(float));
  void *workspace = zeros(df2_attention_workspace_bytes(n_rows, size, size));
  kernel->attend(partials, &params, rows, n_rows, &cache, &cache, 0, atoi(argv[5]), workspace);
  return 0;
}
