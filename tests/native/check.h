// The checks of C++ tests: those of ops/checks.h, with the place in the source.
#pragma once

#include <cstdint>

#include "ops/checks.h"

#define CHECK(condition) test_check(static_cast<bool>(condition), "%s:%d: %s", __FILE__, __LINE__, #condition)

// Checks that a C API call returns the status, and shows its message if not.
#define CHECK_STATUS(call, expected)                                                                                 \
  do {                                                                                                               \
    const int32_t status_ = (call);                                                                                  \
    test_check(status_ == (expected), "%s:%d: %s gave %s (%s)", __FILE__, __LINE__, #call, df2_status_name(status_), \
               df2_error_last());                                                                                    \
  } while (0)

// What main returns.
inline int report(const char *name) {
  return test_finish(name);
}
