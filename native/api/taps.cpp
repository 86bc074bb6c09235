// The C API for taps.
#include "cpu_backend/taps.h"

#include "api/guard.h"

using df2::guard;
using df2::require;

extern "C" {

int32_t df2_taps_create(df2_taps **out) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    *out = new df2_taps();
  });
}

void df2_taps_free(df2_taps *taps) {
  delete taps;
}

}  // extern "C"
