/* test_qmm.c for the kernels of test_qmm_standin_kernels.c: the dispatch it sees has them and ref.c. */
#define df2_qmm_kernel_at standin_kernel_at
#define main test_main
#include "test_qmm.c"
#undef main
#undef df2_qmm_kernel_at

extern const df2_qmm_kernel df2_qmm_kernels_avx2vnni_standin[DF2_QMM_N_TYPES];

const df2_qmm_kernel *standin_kernel_at(df2_qmm_type type, int32_t index, uint32_t *required_features) {
  *required_features = index == 0 ? DF2_CPU_AVX2 | DF2_CPU_AVX512 : 0;
  return index == 0 ? &df2_qmm_kernels_avx2vnni_standin[type] : index == 1 ? df2_qmm_find(type, 0) : NULL;
}

int main(int argc, char **argv) {
  if ((df2_cpu_features() & DF2_CPU_AVX512) == 0) {
    printf("skipped: this CPU has no AVX-512 VNNI to stand in for AVX2-VNNI\n");
    return 77;
  }
  return test_main(argc, argv);
}
