#include "ops/attention/attention.h"
#include "ops/common/cpu.h"

#define DF2_ATTENTION_ISA(isa, features) extern const df2_attention_kernel df2_attention_kernel_##isa;
#include "ops/attention/kernels.inc"
#undef DF2_ATTENTION_ISA

static const struct {
  const df2_attention_kernel *kernel;
  uint32_t features;
} isas[] = {
#define DF2_ATTENTION_ISA(isa, features) {&df2_attention_kernel_##isa, features},
#include "ops/attention/kernels.inc"
#undef DF2_ATTENTION_ISA
};

#define N_ISAS ((int32_t)(sizeof(isas) / sizeof(isas[0])))

const df2_attention_kernel *df2_attention_kernel_at(int32_t index, uint32_t *required_features) {
  if (index < 0 || index >= N_ISAS) {
    return 0;
  }
  *required_features = isas[index].features;
  return isas[index].kernel;
}

const df2_attention_kernel *df2_attention_find(uint32_t cpu_features) {
  int32_t index = 0;
  while ((isas[index].features & ~cpu_features) != 0) {
    ++index; /* ends at ref, which needs nothing */
  }
  return isas[index].kernel;
}
