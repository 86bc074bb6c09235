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

/* What the environment variable DF2_FORCE_ISA asks for. */
typedef enum df2_cpu_forcing {
  DF2_CPU_NOT_FORCED,     /* it is not set, or empty */
  DF2_CPU_FORCED,         /* an instruction set that this CPU has */
  DF2_CPU_FORCED_UNKNOWN, /* a name that no instruction set has */
  DF2_CPU_FORCED_MISSING  /* an instruction set that this CPU lacks */
} df2_cpu_forcing;

typedef struct df2_cpu_choice {
  df2_cpu_forcing forcing;
  const char *isa;   /* the variable's value, "" if it is not set; valid until the environment changes */
  uint32_t features; /* kernels may use these: of the instruction set if it is FORCED, of the CPU otherwise */
} df2_cpu_choice;

/* Reads DF2_FORCE_ISA. It decides nothing about a value that is wrong: df2_kernels_enable refuses it. Any thread, while
 * none changes the environment. */
df2_cpu_choice df2_cpu_choose(void);

/* The features that df2_cpu_choose leaves to kernels. */
uint32_t df2_cpu_allowed_features(void);

/* The names of instruction sets (isas.inc), best first, and the features each needs: index 0, 1, ... until null. */
const char *df2_cpu_isa_at(int index, uint32_t *features);

#ifdef __cplusplus
}
#endif

#endif
