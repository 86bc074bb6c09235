// The C API for kernels.
#include "cpu_backend/kernels.h"

#include "api/guard.h"
#include "cpu_backend/packed_buffer.h"

using df2::guard;

extern "C" {

int32_t df2_kernels_enable(void) {
  return guard([] { df2::enable_kernels(); });
}

int32_t df2_kernels_info_get(df2_kernels_info *info) {
  return guard([&] {
    const df2::KernelStatus status = df2::kernel_status();
    const df2::PackedBytes bytes = df2::all_packed_bytes();
    df2_kernels_info found = {};
    found.state = status.state;
    found.isa = status.isa;
    found.note = status.note;
    found.packed_bytes = bytes.packed;
    found.copied_bytes = bytes.copied;
    df2::write_result(info, found);
  });
}

}  // extern "C"
