#include "ops/common/cpu.h"
#include "ops/qmm/qmm.h"

#define DF2_QMM_ISA(isa, features) extern const df2_qmm_kernel df2_qmm_kernels_##isa[DF2_QMM_N_TYPES];
#include "ops/qmm/kernels.inc"
#undef DF2_QMM_ISA

static const struct {
  const df2_qmm_kernel *kernels;
  uint32_t features;
} isas[] = {
#define DF2_QMM_ISA(isa, features) {df2_qmm_kernels_##isa, features},
#include "ops/qmm/kernels.inc"
#undef DF2_QMM_ISA
};

#define N_ISAS ((int32_t)(sizeof(isas) / sizeof(isas[0])))

const df2_qmm_kernel *df2_qmm_kernel_at(df2_qmm_type type, int32_t index, uint32_t *required_features) {
  if (index < 0 || index >= N_ISAS) {
    return 0;
  }
  *required_features = isas[index].features;
  return &isas[index].kernels[type];
}

const df2_qmm_kernel *df2_qmm_find(df2_qmm_type type, uint32_t cpu_features) {
  int32_t index = 0;
  while ((isas[index].features & ~cpu_features) != 0) {
    ++index; /* ends at ref, which needs nothing */
  }
  return &isas[index].kernels[type];
}
