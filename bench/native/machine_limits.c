#include "machine_limits.h"

#include <string.h>

#include "ops/common/cpu.h"
#include "ops/common/split.h"
#include "thread_team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define N_ROUNDS 200000 /* of a peak loop: some milliseconds */
#define N_CHAINS 12     /* independent sums: more than latency times throughput of any of the instructions */

/* What loops compute goes here, or compilers would drop them. */
static volatile uint64_t sink;

/* ------------------------------------------------------------------------------------------------------- reading */

/* Adds up n values of each of the streams, which begin `stride` values apart. */
typedef uint64_t (*read_function)(const uint64_t *values, size_t n, size_t stride);

/* The compiler's vectoriser does the rest. */
#define READ_ONE                   \
  uint64_t sum = 0;                \
  (void)stride;                    \
  for (size_t i = 0; i < n; i++) { \
    sum += values[i];              \
  }                                \
  return sum;

#define READ_FOUR                                                                                    \
  uint64_t sum = 0;                                                                                  \
  for (size_t i = 0; i < n; i++) {                                                                   \
    sum += values[i] + values[i + stride] + values[i + 2 * stride] + values[i + (size_t)3 * stride]; \
  }                                                                                                  \
  return sum;

#define READ_ARGUMENTS const uint64_t *values, size_t n, size_t stride

static uint64_t read_one_plain(READ_ARGUMENTS) {
  READ_ONE
}
static uint64_t read_four_plain(READ_ARGUMENTS){READ_FOUR}
#if defined(__x86_64__)
#define READ_AVX2 __attribute__((target("avx2")))
#define READ_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
READ_AVX2 static uint64_t read_one_avx2(READ_ARGUMENTS){READ_ONE} READ_AVX2 static uint64_t
    read_four_avx2(READ_ARGUMENTS){READ_FOUR} READ_AVX512 static uint64_t
    read_one_avx512(READ_ARGUMENTS){READ_ONE} READ_AVX512 static uint64_t read_four_avx512(READ_ARGUMENTS) {
  READ_FOUR
}
#endif

typedef struct read_job {
  const uint64_t *values;
  size_t n_values;
  size_t n_streams;
  read_function read;
} read_job;

static void read_part(void *context, int32_t thread, int32_t n_threads) {
  const read_job *job = context;
  const df2_range share = df2_split((int64_t)job->n_values, thread, n_threads);
  size_t stride = (size_t)(share.end - share.begin) / job->n_streams;
  sink += job->read(job->values + share.begin, stride, stride);
}

/* Fills in the ways to read that this CPU has; which one is fastest depends on its prefetchers. */
static int32_t ways_to_read(read_function one[2], read_function four[2]) {
  int32_t n = 0;
#if defined(__x86_64__)
  if (df2_cpu_features() & DF2_CPU_AVX512) {
    one[n] = read_one_avx512;
    four[n++] = read_four_avx512;
  }
  if (df2_cpu_features() & DF2_CPU_AVX2) {
    one[n] = read_one_avx2;
    four[n++] = read_four_avx2;
  }
#endif
  if (n == 0) {
    one[n] = read_one_plain;
    four[n++] = read_four_plain;
  }
  return n;
}

double limits_read_rate(const void *buffer, size_t n_bytes, int32_t n_threads, int32_t n_repeats) {
  read_function one[2];
  read_function four[2];
  double best = 0;
  int32_t n_ways = ways_to_read(one, four);
  for (int32_t way = 0; way < 2 * n_ways; way++) {
    read_job job = {buffer, n_bytes / sizeof(uint64_t), way < n_ways ? 1 : 4,
                    way < n_ways ? one[way] : four[way - n_ways]};
    double rate = (double)n_bytes / team_measure(read_part, NULL, &job, n_threads, n_repeats).best_s;
    best = rate > best ? rate : best;
  }
  return best;
}

/* ---------------------------------------------------------------------------------------------------- multiplying */

typedef void (*peak_function)(void);

/* One peak loop: STEP(sum, a, b) for each of the sums, again and again. The operands pass through an empty assembler
 * statement, so that the compiler can neither compute ahead nor lift anything out of the loop; the sums are variables
 * of their own, because it would keep an array in memory. */
#define PEAK_LOOP(name, attributes, vector, constraint, STEP)                  \
  attributes static void name(void) {                                          \
    vector zero, a, b;                                                         \
    memset(&zero, 0, sizeof(zero));                                            \
    memset(&a, 1, sizeof(a));                                                  \
    memset(&b, 2, sizeof(b));                                                  \
    vector s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero;   \
    vector s6 = zero, s7 = zero, s8 = zero, s9 = zero, s10 = zero, s11 = zero; \
    for (int32_t round = 0; round < N_ROUNDS; round++) {                       \
      FOR_ALL_SUMS(PEAK_STEP, constraint, STEP)                                \
    }                                                                          \
    FOR_ALL_SUMS(PEAK_SINK, constraint, STEP)                                  \
  }

#define FOR_ALL_SUMS(DO, constraint, STEP) \
  DO(s0, constraint, STEP)                 \
  DO(s1, constraint, STEP)                 \
  DO(s2, constraint, STEP)                 \
  DO(s3, constraint, STEP)                 \
  DO(s4, constraint, STEP)                 \
  DO(s5, constraint, STEP)                 \
  DO(s6, constraint, STEP)                 \
  DO(s7, constraint, STEP)                 \
  DO(s8, constraint, STEP)                 \
  DO(s9, constraint, STEP)                 \
  DO(s10, constraint, STEP)                \
  DO(s11, constraint, STEP)

#define PEAK_STEP(sum, constraint, STEP)              \
  __asm__("" : "+" constraint(a), "+" constraint(b)); \
  STEP(sum, a, b);

#define PEAK_SINK(sum, constraint, STEP) __asm__ volatile("" : : constraint(sum));

#define NO_ATTRIBUTES

#if defined(__x86_64__)
#define TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define TARGET_AVX2 __attribute__((target("avx2,fma")))

#define STEP_VNNI512(sum, a, b) sum = _mm512_dpbusd_epi32(sum, a, b)
#define STEP_FMA512(sum, a, b) sum = _mm512_fmadd_ps(a, b, sum)
#define STEP_FMA256(sum, a, b) sum = _mm256_fmadd_ps(a, b, sum)
/* VEX-encoded vpdpbusd, as bytes of assembler text: not every compiler that builds this has the intrinsic */
#define STEP_VNNI256(sum, a, b) __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b))
/* every product widened to 32 bits at once, which no values can make overflow */
#define STEP_MADD256(sum, a, b) \
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)))

PEAK_LOOP(int8_avx512, TARGET_AVX512, __m512i, "v", STEP_VNNI512)
PEAK_LOOP(int8_avx2vnni, TARGET_AVX2, __m256i, "x", STEP_VNNI256)
PEAK_LOOP(int8_avx2, TARGET_AVX2, __m256i, "x", STEP_MADD256)
PEAK_LOOP(float_avx512, TARGET_AVX512, __m512, "v", STEP_FMA512)
PEAK_LOOP(float_avx2, TARGET_AVX2, __m256, "x", STEP_FMA256)

#elif defined(__aarch64__)
/* as assembler text, since compilers disagree about how to name an extension for a single function */
#define STEP_SMMLA(sum, a, b) \
  __asm__(".arch_extension i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b))
#define STEP_SDOT(sum, a, b) \
  __asm__(".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(a), "w"(b))
#define STEP_MULL(sum, a, b)              \
  sum = vreinterpretq_s8_s32(vpadalq_s16( \
      vpadalq_s16(vreinterpretq_s32_s8(sum), vmull_s8(vget_low_s8(a), vget_low_s8(b))), vmull_high_s8(a, b)))
#define STEP_FMLA(sum, a, b) sum = vfmaq_f32(sum, a, b)

PEAK_LOOP(int8_i8mm, NO_ATTRIBUTES, int8x16_t, "w", STEP_SMMLA)
PEAK_LOOP(int8_dotprod, NO_ATTRIBUTES, int8x16_t, "w", STEP_SDOT)
PEAK_LOOP(int8_neon, NO_ATTRIBUTES, int8x16_t, "w", STEP_MULL)
PEAK_LOOP(float_neon, NO_ATTRIBUTES, float32x4_t, "w", STEP_FMLA)
#endif

typedef struct peak_loop {
  const char *isa;
  peak_function run;
  double n_operations; /* of one step */
} peak_loop;

/* sme2 is measured by what it has outside streaming mode: its outer products need their own loop. */
static const peak_loop int8_loops[] = {
#if defined(__x86_64__)
    {"avx512", int8_avx512, 128},
    {"avx2vnni", int8_avx2vnni, 64},
    {"avx2", int8_avx2, 64},
#elif defined(__aarch64__)
    {"sme2", int8_i8mm, 64}, {"i8mm", int8_i8mm, 64}, {"dotprod", int8_dotprod, 32}, {"neon", int8_neon, 32},
#endif
    {NULL, NULL, 0},
};

static const peak_loop float_loops[] = {
#if defined(__x86_64__)
    {"avx512", float_avx512, 32},
    {"avx2vnni", float_avx2, 16},
    {"avx2", float_avx2, 16},
#elif defined(__aarch64__)
    {"sme2", float_neon, 8}, {"i8mm", float_neon, 8}, {"dotprod", float_neon, 8}, {"neon", float_neon, 8},
#endif
    {NULL, NULL, 0},
};

static void run_peak(void *context, int32_t thread, int32_t n_threads) {
  (void)thread;
  (void)n_threads;
  ((const peak_loop *)context)->run();
}

static double peak_rate(const peak_loop *loops, const char *isa, int32_t n_threads, int32_t n_repeats) {
  for (const peak_loop *loop = loops; loop->isa; loop++) {
    if (strcmp(loop->isa, isa) == 0) {
      peak_loop chosen = *loop;
      double n_operations = chosen.n_operations * N_ROUNDS * N_CHAINS * n_threads;
      return n_operations / team_measure(run_peak, NULL, &chosen, n_threads, n_repeats).best_s;
    }
  }
  return 0;
}

double limits_int8_rate(const char *isa, int32_t n_threads, int32_t n_repeats) {
  return peak_rate(int8_loops, isa, n_threads, n_repeats);
}

double limits_float_rate(const char *isa, int32_t n_threads, int32_t n_repeats) {
  return peak_rate(float_loops, isa, n_threads, n_repeats);
}
