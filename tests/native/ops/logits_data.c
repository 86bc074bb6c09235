#include "logits_data.h"

#include <math.h>
#include <stdlib.h>

const char *logits_pattern_name(logits_pattern pattern) {
  static const char *const names[] = {"random", "ties",      "ascending", "descending", "stairs", "equal",
                                      "zeros",  "denormals", "NaNs",      "infinities", "low",    "nothing"};
  return names[pattern];
}

static float random_nan(test_random *random) {
  const uint32_t sign = test_random_below(random, 2) << 31;
  return test_float_of_bits(sign | 0x7f800000u | (1 + test_random_below(random, 0x7fffffu)));
}

static float random_zero(test_random *random) {
  return test_random_below(random, 2) != 0 ? 0.0f : -0.0f;
}

static float nan_or_minus_infinity(test_random *random) {
  return test_random_below(random, 2) != 0 ? random_nan(random) : -INFINITY;
}

static float infinity_or_nan(test_random *random) {
  const float values[] = {INFINITY, -INFINITY, random_nan(random)};
  return values[test_random_below(random, 3)];
}

static float draw(logits_pattern pattern, int64_t i, int64_t n, test_random *random) {
  switch (pattern) {
    case LOGITS_TIES:
      return (float)test_random_below(random, 3);
    case LOGITS_ASCENDING:
      return (float)i - 100.0f;
    case LOGITS_DESCENDING:
      return (float)(n - i) - 100.0f;
    case LOGITS_STAIRS:
      return (float)(i / 100);
    case LOGITS_EQUAL:
      return -7.0f;
    case LOGITS_ZEROS:
      return random_zero(random);
    case LOGITS_DENORMALS:
      return test_float_of_bits(test_random_below(random, 2) << 31 | test_random_below(random, 1000));
    case LOGITS_NANS:
      return test_random_below(random, 3) == 0 ? random_nan(random) : test_random_float(random);
    case LOGITS_INFINITIES:
      return test_random_below(random, 10) == 0 ? infinity_or_nan(random) : test_random_float(random);
    case LOGITS_LOW:
      return test_random_below(random, 50) == 0 ? test_random_float(random) : nan_or_minus_infinity(random);
    case LOGITS_NOTHING:
      return nan_or_minus_infinity(random);
    default:
      return 30.0f * test_random_float(random);
  }
}

void logits_fill(float *logits, int64_t n, logits_pattern pattern, test_random *random) {
  for (int64_t i = 0; i < n; ++i) {
    logits[i] = draw(pattern, i, n, random);
  }
}

typedef struct entry {
  float value;
  int32_t id;
} entry;

static int compare(const void *left, const void *right) {
  const entry *a = left, *b = right;
  if (a->value != b->value) {
    return a->value > b->value ? -1 : 1;
  }
  return a->id < b->id ? -1 : 1;
}

void logits_sort(int32_t *ids, const float *logits, int64_t n) {
  entry *entries = malloc((size_t)n * sizeof(entry));
  for (int64_t i = 0; i < n; ++i) {
    entries[i] = (entry){isnan(logits[i]) ? -INFINITY : logits[i], (int32_t)i};
  }
  qsort(entries, (size_t)n, sizeof(entry), compare);
  for (int64_t i = 0; i < n; ++i) {
    ids[i] = entries[i].id;
  }
  free(entries);
}
