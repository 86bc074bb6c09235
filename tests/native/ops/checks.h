/* Checks that go on after a failure, for every native test: in C++, through tests/native/check.h. */
#ifndef DF2_TESTS_OPS_CHECKS_H
#define DF2_TESTS_OPS_CHECKS_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Prints "<name>: passed" or FAILED, and how many checks there were; the exit status. No check at all is a failure. */
int test_finish(const char *name);

/* Names what is tested from here on, for the messages of failures and crashes. A test need not. */
void test_case(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Counts a failure and prints it, the first few times, if the condition does not hold. Returns the condition. */
bool test_check(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
