// A drafter file, read and checked. Knows no device: its weights are still where the file is mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/gguf_file.h"
#include "dflash2.h"
#include "drafter/drafter_params.h"
#include "drafter/drafter_weights.h"

namespace df2 {

// A tensor of the file, of the shape that the parameters imply.
struct DrafterTensor {
  TensorInfo info;
  int n_dims;
  TensorUse use;
  WeightPlace place;
};

class DrafterFile {
 public:
  // Throws Error: DF2_EIO, DF2_EFORMAT, DF2_EUNSUPPORTED.
  explicit DrafterFile(const std::string &path);

  const std::string &path() const { return path_; }
  const DrafterParams &params() const { return params_; }

  // token_hash() of every tokenizer entry, to tell whether a target speaks the same tokens.
  const std::vector<uint32_t> &token_hashes() const { return token_hashes_; }

  // All tensors of the file. Their data is part of map(), aligned to 32 bytes.
  const std::vector<DrafterTensor> &tensors() const { return tensors_; }
  const MappedFile &map() const { return *map_; }
  size_t weights_bytes() const { return weights_bytes_; }

  [[noreturn]] void fail(df2_status status, const std::string &problem) const;

 private:
  void read_tensors(const GgufFile &file);
  void check(const TensorInfo &info, const WeightRule &rule) const;
  void check_ids(const TensorInfo &info) const;
  void check_numbers(const TensorInfo &info) const;

  std::string path_;
  DrafterParams params_;
  std::vector<uint32_t> token_hashes_;
  std::vector<DrafterTensor> tensors_;
  std::shared_ptr<const MappedFile> map_;
  size_t weights_bytes_ = 0;
};

}  // namespace df2
