// A GGUF file opened for reading: the header through ggml's own parser, the tensor data through a memory map. Every
// getter checks presence, type and range first, because ggml's abort on the wrong type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/mapped_file.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "gguf.h"

namespace df2 {

struct TensorInfo {
  std::string name;
  ggml_type type;
  int64_t ne[GGML_MAX_DIMS];
  const uint8_t *data;  // inside the map; see GgufFile::read_data()
  size_t size_bytes;
};

class GgufFile {
 public:
  // Parses the header and checks that every tensor lies inside the file. Throws Error (DF2_EIO, DF2_EFORMAT,
  // DF2_ENOMEM).
  explicit GgufFile(const std::string &path);

  const std::string &path() const { return path_; }

  // Makes the tensors' data valid where the file could not be mapped. Throws Error (DF2_EIO).
  void read_data() { map_->read_all(); }

  // The map outlives this object for whoever holds it: tensor data stays valid after the header is gone.
  std::shared_ptr<const MappedFile> map() const { return map_; }

  bool has(const std::string &key) const;

  // The value of a key. Throws DF2_EFORMAT if it is missing (the forms without a default), has another type, or does
  // not fit.
  std::string text(const std::string &key) const;
  std::string text(const std::string &key, const std::string &fallback) const;
  int32_t integer(const std::string &key, int32_t min, int32_t max) const;
  int32_t integer(const std::string &key, int32_t min, int32_t max, int32_t fallback) const;
  float number(const std::string &key) const;
  float number(const std::string &key, float fallback) const;
  bool flag(const std::string &key, bool fallback) const;
  std::vector<int32_t> integers(const std::string &key) const;
  std::vector<bool> flags(const std::string &key) const;

  // The strings of an array, borrowed from the header.
  std::vector<const char *> texts(const std::string &key) const;

  const std::vector<TensorInfo> &tensors() const { return tensors_; }

  // Bytes of tensor data.
  size_t data_bytes() const;

 private:
  int64_t find(const std::string &key) const;
  int64_t require(const std::string &key) const;
  int64_t require_array(const std::string &key) const;
  void check_kind() const;
  void parse_header();
  void add_tensor(int64_t index);
  [[noreturn]] void fail(const std::string &problem) const;

  std::string path_;
  std::shared_ptr<MappedFile> map_;
  gguf_context_ptr header_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace df2
