/* Reading the command lines of the benches. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MAX_LIST 32 /* numbers in a list, and the zero that ends it */

/* Numbers from 1 to `largest`, separated by commas; list[MAX_LIST] is ended by a zero. False if the text is none. */
bool parse_list(int32_t *list, const char *text, int32_t largest);
bool parse_number(int32_t *number, const char *text, int32_t largest);

/* Whether a name is among those of the list, separated by commas; every name is in a null list. */
bool is_listed(const char *list, const char *name);

#ifdef __cplusplus
}
#endif

#endif
