#include "drafter/load_drafter.h"

#include <optional>
#include <utility>

#include "common/error.h"
#include "cpu_backend/kernels.h"

namespace df2 {

std::shared_ptr<const Drafter> load_drafter(const std::string &path, bool wants_kernels, int32_t version) {
  ggml_backend_buffer_type_t packed = nullptr;
  std::optional<DrafterKernels> kernels;
  if (wants_kernels) {
    enable_kernels();
    packed = drafter_buffer_type();
    if (kernel_status().state != DF2_KERNELS_DISABLED) {
      kernels = find_drafter_kernels();
    }
  }
  DrafterFile file(path);
  const int32_t found = file.params().version;
  if (version != 0 && version != found) {
    throw Error(DF2_EMISMATCH,
                format("'%s' is a DFlash %d drafter, and DFlash %d was asked for", path.c_str(), found, version));
  }
  try {
    return std::make_shared<const Drafter>(std::move(file), packed, kernels);
  } catch (const Error &error) {
    if (error.status() != DF2_ENOMEM || packed == nullptr) {
      throw;
    }
    log_line(DF2_LOG_WARN, format("%s; they stay as they are in the file", error.what()));
  }
  return std::make_shared<const Drafter>(DrafterFile(path), nullptr, kernels);
}

}  // namespace df2
