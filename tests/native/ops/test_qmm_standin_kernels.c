/* The AVX2-VNNI kernels with the EVEX form of their vpdpbusd: another encoding of the same instruction, which
 * processors with AVX-512 VNNI have. */
#include <immintrin.h>

#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define df2_qmm_kernels_avx2vnni df2_qmm_kernels_avx2vnni_standin
#include "ops/qmm/x86_avx2vnni.c"
