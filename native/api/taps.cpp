// The C API for taps.
#include "api/guard.h"
#include "target/tap_source.h"

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

bool df2_taps_eval(struct ggml_tensor *tensor, bool ask, void *taps) {
  return df2::show_to_taps(tensor, ask, taps);
}

}  // extern "C"
