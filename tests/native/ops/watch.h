/* Calls that are watched for what the calling convention of AArch64 promises: d8 to d15 kept, streaming mode and ZA off
 * on return, and a caller's dormant ZA saved before it is overwritten. Elsewhere, plain calls. */
#ifndef DF2_TESTS_OPS_WATCH_H
#define DF2_TESTS_OPS_WATCH_H

#include <stdbool.h>

/* Calls body(context). Returns null, or what it broke. has_sme: whether the CPU has SME, and its state can be read. */
const char *test_watched_call(void (*body)(void *), void *context, bool has_sme);

/* The same, from a caller that has ZA in use and lets callees save it only if they need to (the lazy scheme of the SME
 * calling convention). Only where there is SME. */
const char *test_watched_call_with_za(void (*body)(void *), void *context);

#endif
