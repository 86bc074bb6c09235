/* Which of an op's kernels a test runs: the one that --isa names, or all that this CPU can. */
#ifndef DF2_TESTS_OPS_ISAS_H
#define DF2_TESTS_OPS_ISAS_H

#include "harness.h"

/* The instruction set of an op's kernel `index`, best first, and what it needs of the CPU; null beyond the last. */
typedef const char *(*test_isa_at)(int32_t index, uint32_t *features);

/* The index of the first kernel to test from `index` on; -1 if there is none. */
int32_t test_isa_next(const test_options *options, test_isa_at isa_at, int32_t index);

/* Prints what will run. False, with a message, if nothing will. */
bool test_isas_print(const test_options *options, test_isa_at isa_at);

#endif
