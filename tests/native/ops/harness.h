/* What the tests of native/ops share: checks, options, seeded random numbers, guarded memory. Plain C without
 * llama.cpp, so that the tests can be cross-compiled and run under an emulator. */
#ifndef DF2_TESTS_OPS_HARNESS_H
#define DF2_TESTS_OPS_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "checks.h"

typedef struct test_options {
  uint64_t seed;
  bool quick;      /* fewer shapes: for emulators */
  bool dispatch;   /* only print what the dispatch chooses */
  const char *isa; /* test this instruction set alone, and fail if it cannot run here; null: all that can */
} test_options;

/* Reads --seed N, --quick, --dispatch and --isa NAME, and prints the seed; exits on anything else. Also makes crashes
 * (a bad address, an illegal instruction) print the case that was being tested. */
void test_start(test_options *options, int argc, char **argv);

/* ---------------------------------------------------------------------------------------------- random numbers */

typedef struct test_random {
  uint64_t state;
} test_random;

/* A generator of its own for each case: what a case draws does not depend on which others ran. */
test_random test_random_for(uint64_t seed, const char *name, uint64_t number);
uint64_t test_random_bits(test_random *random);
uint32_t test_random_below(test_random *random, uint32_t n);
float test_random_float(test_random *random); /* multiples of 2^-23 in [-1, 1) */
void test_random_bytes(test_random *random, void *bytes, size_t n);

/* ------------------------------------------------------------------------------------------------------- memory */

/* Memory aligned to `alignment` bytes at most 64, with known bytes before it, and, if its size is a multiple of the
 * alignment, a page right behind it that cannot be touched; fewer than `alignment` known bytes in between otherwise. */
typedef struct test_buffer {
  uint8_t *data; /* filled with TEST_FILL */
  size_t size;
  uint8_t *pages;
  size_t n_bytes; /* of the accessible pages */
} test_buffer;

#define TEST_FILL 0xa5

test_buffer test_buffer_new(size_t size, size_t alignment);
void test_buffer_free(test_buffer *buffer);
bool test_buffer_guards_intact(const test_buffer *buffer);

/* Whether bytes [first, last) still hold TEST_FILL. */
bool test_buffer_untouched(const test_buffer *buffer, size_t first, size_t last);

/* ------------------------------------------------------------------------------------------------------- values */

/* Index of the first float whose bits differ, or -1. All NaNs count as equal. */
int64_t test_first_difference(const float *a, const float *b, int64_t n);

uint32_t test_float_bits(float value);
float test_float_of_bits(uint32_t bits);

/* Folds n floats into a checksum that machines can compare; all NaNs count as equal. */
uint64_t test_checksum(uint64_t checksum, const float *values, int64_t n);

#endif
