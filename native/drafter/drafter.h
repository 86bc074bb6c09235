// A loaded drafter: a file's parameters, and its weights in memory that ggml computes with. Immutable, and shareable
// between sessions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "drafter/drafter_file.h"
#include "drafter/drafter_kernels.h"
#include "drafter/drafter_weights.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"

namespace df2 {

// Tensors, and the memory they are in. Null if there are none.
struct WeightMemory {
  ggml_context_ptr context;
  ggml_backend_buffer_ptr buffer;
};

class Drafter {
 public:
  // Weights stay in the mapped file but for matrices that are multiplied: they go into a buffer of packed_type, which
  // is the CPU's. Null leaves all of them in the file.
  // kernels: this library's, to compute with; without them ggml computes alone.
  // Throws Error: DF2_EUNSUPPORTED, DF2_ENOMEM, DF2_EBACKEND.
  Drafter(DrafterFile file, ggml_backend_buffer_type_t packed_type, const std::optional<DrafterKernels> &kernels);

  const std::string &path() const { return file_.path(); }
  const DrafterParams &params() const { return file_.params(); }
  const std::vector<uint32_t> &token_hashes() const { return file_.token_hashes(); }
  const DrafterWeights &weights() const { return weights_; }
  const std::optional<DrafterKernels> &kernels() const { return kernels_; }
  size_t weights_bytes() const { return file_.weights_bytes(); }
  size_t packed_bytes() const;
  // The rest, as far as it is in tensors.
  size_t mapped_bytes() const;
  // Whether the rest is memory that the system may drop and read again.
  bool is_mapped() const { return file_.map().is_mapped(); }

 private:
  DrafterFile file_;
  std::optional<DrafterKernels> kernels_;
  WeightMemory mapped_;
  WeightMemory packed_;
  WeightMemory ids_;
  DrafterWeights weights_;
};

}  // namespace df2
