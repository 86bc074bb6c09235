#include "common/gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/error.h"

namespace df2 {

MappedFile::MappedFile(const std::string &path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw Error(DF2_EIO, format("cannot open '%s': %s", path.c_str(), std::strerror(errno)));
  }
  struct stat status;
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor);
    throw Error(DF2_EIO, format("'%s' is not a regular file", path.c_str()));
  }
  if (status.st_size == 0) {
    close(descriptor);
    throw Error(DF2_EFORMAT, format("'%s' is empty", path.c_str()));
  }
  size_ = static_cast<size_t>(status.st_size);
  void *view = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  const int problem = errno;
  close(descriptor);
  if (view == MAP_FAILED) {
    throw Error(DF2_EIO, format("cannot map '%s': %s", path.c_str(), std::strerror(problem)));
  }
  data_ = static_cast<uint8_t *>(view);
}

MappedFile::~MappedFile() {
  munmap(data_, size_);
}

GgufFile::GgufFile(const std::string &path) : path_(path), map_(std::make_shared<MappedFile>(path)) {
  constexpr char kPointer[] = "version https://git-lfs.github.com/spec/";
  if (map_->size() > sizeof(kPointer) && std::memcmp(map_->data(), kPointer, sizeof(kPointer) - 1) == 0) {
    fail(
        "this is a Git LFS pointer, not the file itself: run `git lfs pull` where it was cloned, or download the file");
  }
  if (map_->size() < 4 || std::memcmp(map_->data(), GGUF_MAGIC, 4) != 0) {
    fail("this is not a GGUF file (convert a Hugging Face drafter with `pydflash2 convert`)");
  }
  const gguf_init_params params = {/*.no_alloc =*/true, /*.ctx =*/nullptr};
  header_.reset(gguf_init_from_buffer(map_->data(), map_->size(), params));
  if (header_ == nullptr) {
    fail("the GGUF header is damaged or truncated; download or convert the file again");
  }
  const size_t data_offset = gguf_get_data_offset(header_.get());
  const int64_t n_tensors = gguf_get_n_tensors(header_.get());
  for (int64_t i = 0; i < n_tensors; ++i) {
    TensorInfo info;
    info.name = gguf_get_tensor_name(header_.get(), i);
    info.type = gguf_get_tensor_type(header_.get(), i);
    info.size_bytes = gguf_get_tensor_size(header_.get(), i);
    std::memcpy(info.ne, gguf_get_tensor_ne(header_.get(), i), sizeof(info.ne));
    const size_t offset = gguf_get_tensor_offset(header_.get(), i);
    // each test also keeps the next subtraction from wrapping
    if (data_offset > map_->size() || offset > map_->size() - data_offset ||
        info.size_bytes > map_->size() - data_offset - offset) {
      fail(format("tensor '%s' reaches past the end of the file (truncated?); download or convert it again",
                  info.name.c_str()));
    }
    info.data = map_->data() + data_offset + offset;
    tensors_.push_back(info);
  }
}

void GgufFile::fail(const std::string &problem) const {
  throw Error(DF2_EFORMAT, format("'%s': %s", path_.c_str(), problem.c_str()));
}

int64_t GgufFile::find(const std::string &key) const {
  return gguf_find_key(header_.get(), key.c_str());
}

int64_t GgufFile::require(const std::string &key) const {
  const int64_t id = find(key);
  if (id < 0) {
    fail(format("key '%s' is missing", key.c_str()));
  }
  return id;
}

int64_t GgufFile::require_array(const std::string &key) const {
  const int64_t id = require(key);
  if (gguf_get_kv_type(header_.get(), id) != GGUF_TYPE_ARRAY) {
    fail(format("key '%s' must be an array", key.c_str()));
  }
  return id;
}

bool GgufFile::has(const std::string &key) const {
  return find(key) >= 0;
}

std::string GgufFile::text(const std::string &key) const {
  const int64_t id = require(key);
  if (gguf_get_kv_type(header_.get(), id) != GGUF_TYPE_STRING) {
    fail(format("key '%s' must be a string", key.c_str()));
  }
  return gguf_get_val_str(header_.get(), id);
}

std::string GgufFile::text(const std::string &key, const std::string &fallback) const {
  return has(key) ? text(key) : fallback;
}

int32_t GgufFile::integer(const std::string &key, int32_t min, int32_t max) const {
  const int64_t id = require(key);
  int64_t value = 0;
  switch (gguf_get_kv_type(header_.get(), id)) {
    case GGUF_TYPE_UINT32:
      value = gguf_get_val_u32(header_.get(), id);
      break;
    case GGUF_TYPE_INT32:
      value = gguf_get_val_i32(header_.get(), id);
      break;
    case GGUF_TYPE_UINT64: {
      const uint64_t wide = gguf_get_val_u64(header_.get(), id);
      value = wide > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ? std::numeric_limits<int64_t>::max()
                                                                                : static_cast<int64_t>(wide);
      break;
    }
    default:
      fail(format("key '%s' must be a 32-bit integer", key.c_str()));
  }
  if (value < min || value > max) {
    fail(
        format("key '%s' is %lld; it must be between %d and %d", key.c_str(), static_cast<long long>(value), min, max));
  }
  return static_cast<int32_t>(value);
}

int32_t GgufFile::integer(const std::string &key, int32_t min, int32_t max, int32_t fallback) const {
  return has(key) ? integer(key, min, max) : fallback;
}

float GgufFile::number(const std::string &key) const {
  const int64_t id = require(key);
  if (gguf_get_kv_type(header_.get(), id) != GGUF_TYPE_FLOAT32) {
    fail(format("key '%s' must be a 32-bit float", key.c_str()));
  }
  const float value = gguf_get_val_f32(header_.get(), id);
  if (!std::isfinite(value)) {
    fail(format("key '%s' is not a finite number", key.c_str()));
  }
  return value;
}

float GgufFile::number(const std::string &key, float fallback) const {
  return has(key) ? number(key) : fallback;
}

bool GgufFile::flag(const std::string &key, bool fallback) const {
  const int64_t id = find(key);
  if (id < 0) {
    return fallback;
  }
  if (gguf_get_kv_type(header_.get(), id) != GGUF_TYPE_BOOL) {
    fail(format("key '%s' must be a bool", key.c_str()));
  }
  return gguf_get_val_bool(header_.get(), id);
}

std::vector<int32_t> GgufFile::integers(const std::string &key) const {
  const int64_t id = require_array(key);
  const gguf_type type = gguf_get_arr_type(header_.get(), id);
  if (type != GGUF_TYPE_INT32 && type != GGUF_TYPE_UINT32) {
    fail(format("key '%s' must be an array of 32-bit integers", key.c_str()));
  }
  const auto *values = static_cast<const int32_t *>(gguf_get_arr_data(header_.get(), id));
  return std::vector<int32_t>(values, values + gguf_get_arr_n(header_.get(), id));
}

std::vector<bool> GgufFile::flags(const std::string &key) const {
  const int64_t id = require_array(key);
  if (gguf_get_arr_type(header_.get(), id) != GGUF_TYPE_BOOL) {
    fail(format("key '%s' must be an array of bools", key.c_str()));
  }
  const auto *values = static_cast<const int8_t *>(gguf_get_arr_data(header_.get(), id));
  std::vector<bool> flags;
  for (size_t i = 0; i < gguf_get_arr_n(header_.get(), id); ++i) {
    flags.push_back(values[i] != 0);
  }
  return flags;
}

std::vector<const char *> GgufFile::texts(const std::string &key) const {
  const int64_t id = require_array(key);
  if (gguf_get_arr_type(header_.get(), id) != GGUF_TYPE_STRING) {
    fail(format("key '%s' must be an array of strings", key.c_str()));
  }
  std::vector<const char *> texts(gguf_get_arr_n(header_.get(), id));
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i] = gguf_get_arr_str(header_.get(), id, i);
  }
  return texts;
}

size_t GgufFile::data_bytes() const {
  size_t total = 0;
  for (const TensorInfo &tensor : tensors_) {
    total += tensor.size_bytes;
  }
  return total;
}

}  // namespace df2
