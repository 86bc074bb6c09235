/* What the CPU can do, found out at run time, and the name of the instruction set that kernels are chosen for. */
#ifndef DF2_OPS_COMMON_CPU_H
#define DF2_OPS_COMMON_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DF2_CPU_AVX2 = 1u << 0,    /* AVX2, FMA and F16C, with the operating system saving ymm */
  DF2_CPU_AVXVNNI = 1u << 1, /* VEX-encoded vpdpbusd */
  DF2_CPU_AVX512 = 1u << 2,  /* AVX-512 F, BW, VL, DQ, VBMI and VNNI, with zmm saved */
  DF2_CPU_NEON = 1u << 8,    /* AArch64's baseline */
  DF2_CPU_DOTPROD = 1u << 9, /* sdot */
  DF2_CPU_I8MM = 1u << 10,   /* smmla */
  DF2_CPU_SME2 = 1u << 11,   /* streaming mode, ZA and ZT0 */
};

/* The features of the CPU this runs on. Any thread; a few microseconds, so ask once. */
uint32_t df2_cpu_features(void);

/* The features that kernels may use: those of the CPU, or those of the instruction set that the environment variable
 * DF2_FORCE_ISA names, if the CPU has them. What is wrong with that variable, df2_kernels_enable reports. */
uint32_t df2_cpu_allowed_features(void);

/* The names of instruction sets, best first, and the features each needs: index 0, 1, ... until null. */
const char *df2_cpu_isa_at(int index, uint32_t *features);

/* The features a kernel of the named instruction set needs: "avx512", "avx2vnni", "avx2", "sme2", "i8mm", "dotprod",
 * "neon", "ref". Returns false if no such name is known. */
int df2_cpu_isa_features(const char *isa, uint32_t *features);

#ifdef __cplusplus
}
#endif

#endif
