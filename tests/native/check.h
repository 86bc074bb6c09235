// The smallest test harness that reports where it failed and goes on.
#pragma once

#include <cstdio>

inline int &failures() {
  static int count = 0;
  return count;
}

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++failures();                                                        \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

// Checks that a C API call returns the status, and shows its message if not.
#define CHECK_STATUS(call, expected)                                                                        \
  do {                                                                                                      \
    const int32_t status_ = (call);                                                                         \
    if (status_ != (expected)) {                                                                            \
      ++failures();                                                                                         \
      std::fprintf(stderr, "%s:%d: %s gave %s (%s)\n", __FILE__, __LINE__, #call, df2_status_name(status_), \
                   df2_error_last());                                                                       \
    }                                                                                                       \
  } while (0)

inline int report(const char *name) {
  std::printf("%s: %s\n", name, failures() == 0 ? "passed" : "FAILED");
  return failures() == 0 ? 0 : 1;
}
