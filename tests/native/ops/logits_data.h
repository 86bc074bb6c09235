/* Rows of logits, ordinary and adversarial, and their order; for test_argmax.c and test_select.c. */
#ifndef DF2_TESTS_OPS_LOGITS_DATA_H
#define DF2_TESTS_OPS_LOGITS_DATA_H

#include "harness.h"

typedef enum logits_pattern {
  LOGITS_RANDOM,
  LOGITS_TIES, /* few different values */
  LOGITS_ASCENDING,
  LOGITS_DESCENDING,
  LOGITS_STAIRS, /* ascending, every value 100 times */
  LOGITS_EQUAL,
  LOGITS_ZEROS,      /* of either sign */
  LOGITS_DENORMALS,  /* of either sign, and zeros */
  LOGITS_NANS,       /* a third of them, quiet and signalling, of either sign */
  LOGITS_INFINITIES, /* of either sign, with NaNs and numbers in between */
  LOGITS_LOW,        /* mostly minus infinity and NaN */
  LOGITS_NOTHING,    /* nothing but minus infinity and NaN */
  LOGITS_N_PATTERNS
} logits_pattern;

const char *logits_pattern_name(logits_pattern pattern);
void logits_fill(float *logits, int64_t n, logits_pattern pattern, test_random *random);

/* ids[n]: all indices, largest value first, lower index first among equals; NaN counts as minus infinity. By qsort. */
void logits_sort(int32_t *ids, const float *logits, int64_t n);

#endif
