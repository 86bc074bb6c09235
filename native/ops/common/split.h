/* How threads share work. */
#ifndef DF2_OPS_COMMON_SPLIT_H
#define DF2_OPS_COMMON_SPLIT_H

#include <stdint.h>

/* [begin, end) */
typedef struct df2_range {
  int64_t begin, end;
} df2_range;

/* The share of part `part`, 0 to n_parts - 1, of n items: shares follow each other, and differ by one item at most. */
static inline df2_range df2_split(int64_t n, int64_t part, int64_t n_parts) {
  const df2_range share = {n * part / n_parts, n * (part + 1) / n_parts};
  return share;
}

#endif
