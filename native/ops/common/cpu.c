#include "ops/common/cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static const struct {
  const char *name;
  uint32_t features;
} isas[] = {
#define DF2_ISA_ROW(isa, architecture, features) {#isa, features},
#include "ops/common/isas.inc"
#undef DF2_ISA_ROW
};

const char *df2_cpu_isa_at(int index, uint32_t *features) {
  if (index < 0 || (size_t)index >= sizeof(isas) / sizeof(isas[0])) {
    return 0;
  }
  *features = isas[index].features;
  return isas[index].name;
}

#if defined(__x86_64__)

/* Which registers the operating system saves: XCR0. */
static uint64_t saved_state(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static int has(uint32_t word, uint32_t bits) {
  return (word & bits) == bits;
}

static uint32_t probe(void) {
  enum { YMM = 0x6, ZMM = 0xe6 };
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) {
    return 0;
  }
  const uint32_t fma_osxsave_avx_f16c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
  if (!has(c, fma_osxsave_avx_f16c) || (saved_state() & YMM) != YMM || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    return 0;
  }
  uint32_t features = 0;
  if (has(b, 1u << 5)) {
    features |= DF2_CPU_AVX2;
  }
  const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  const uint32_t vbmi_vnni = 1u << 1 | 1u << 11;
  if (has(b, f_dq_bw_vl) && has(c, vbmi_vnni) && (saved_state() & ZMM) == ZMM) {
    features |= DF2_CPU_AVX512;
  }
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 1u << 4)) {
    features |= DF2_CPU_AVXVNNI;
  }
  return features;
}

#elif defined(__aarch64__) && defined(__linux__)

static uint32_t probe(void) {
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  uint32_t features = DF2_CPU_NEON;
  features |= (hwcap >> 20 & 1) != 0 ? DF2_CPU_DOTPROD : 0; /* HWCAP_ASIMDDP */
  features |= (hwcap2 >> 13 & 1) != 0 ? DF2_CPU_I8MM : 0;   /* HWCAP2_I8MM */
  features |= (hwcap2 >> 37 & 1) != 0 ? DF2_CPU_SME2 : 0;   /* HWCAP2_SME2 */
  return features;
}

#elif defined(__aarch64__) && defined(__APPLE__)

static uint32_t probe_one(const char *name, uint32_t feature) {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0 ? feature : 0;
}

static uint32_t probe(void) {
  return DF2_CPU_NEON | probe_one("hw.optional.arm.FEAT_DotProd", DF2_CPU_DOTPROD) |
         probe_one("hw.optional.arm.FEAT_I8MM", DF2_CPU_I8MM) | probe_one("hw.optional.arm.FEAT_SME2", DF2_CPU_SME2);
}

#else

static uint32_t probe(void) {
  return 0;
}

#endif

uint32_t df2_cpu_features(void) {
  return probe();
}

df2_cpu_choice df2_cpu_choose(void) {
  const uint32_t present = df2_cpu_features();
  const char *forced = getenv("DF2_FORCE_ISA");
  if (forced == 0 || *forced == '\0') {
    return (df2_cpu_choice){DF2_CPU_NOT_FORCED, "", present};
  }
  const char *name;
  uint32_t features;
  for (int i = 0; (name = df2_cpu_isa_at(i, &features)) != 0; ++i) {
    if (strcmp(name, forced) == 0) {
      const int is_there = (features & ~present) == 0;
      return is_there ? (df2_cpu_choice){DF2_CPU_FORCED, name, features}
                      : (df2_cpu_choice){DF2_CPU_FORCED_MISSING, name, present};
    }
  }
  return (df2_cpu_choice){DF2_CPU_FORCED_UNKNOWN, forced, present};
}

uint32_t df2_cpu_allowed_features(void) {
  return df2_cpu_choose().features;
}
