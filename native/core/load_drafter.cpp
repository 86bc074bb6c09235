#include "core/load_drafter.h"

#include "common/error.h"
#include "cpu_backend/kernels.h"

namespace df2 {

std::shared_ptr<const Drafter> load_drafter(const std::string &path, bool wants_kernels, int32_t version) {
  ggml_backend_buffer_type_t packed = nullptr;
  bool with_kernels = false;
  if (wants_kernels) {
    enable_kernels();
    packed = drafter_buffer_type();
    with_kernels = kernel_status().state != DF2_KERNELS_DISABLED;
  }
  auto drafter = std::make_shared<const Drafter>(path, packed, with_kernels);
  const int32_t found = drafter->params().version;
  if (version != 0 && version != found) {
    throw Error(DF2_EMISMATCH,
                format("'%s' is a DFlash %d drafter, and DFlash %d was asked for", path.c_str(), found, version));
  }
  return drafter;
}

}  // namespace df2
