#include "common/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "common/error.h"
#include "common/file_kind.h"
#include "common/log_capture.h"

namespace df2 {

namespace {

constexpr char kQuantiseAgain[] = "quantise the original weights again with a current llama.cpp, or get another file";

// A remedy for a header that ggml refuses, by what it says about it.
std::string header_remedy(const std::string &reason, const std::string &path) {
  const char *place = std::strstr(reason.c_str(), "tensor '");
  char name[GGML_MAX_NAME] = "";
  int type = -1;
  const bool is_unknown =
      place != nullptr && std::sscanf(place, "tensor '%63[^']' has invalid ggml type %d", name, &type) == 2;
  const bool is_removed = !is_unknown && place != nullptr &&
                          std::sscanf(place, "tensor '%63[^']' of type %d", name, &type) == 2 && type >= 0 &&
                          type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) == 0;
  if (is_unknown || is_removed) {
    const auto number = static_cast<uint32_t>(type);
    return format("tensor '%s' has type %u (%s), which llama.cpp does not read: %s", name, number,
                  foreign_type(number).c_str(), kQuantiseAgain);
  }
  return format("the GGUF header is damaged or incomplete (%s)%s; download or convert the file again",
                reason.empty() ? "no reason given" : reason.c_str(), unfinished_download(path).c_str());
}

}  // namespace

GgufFile::GgufFile(const std::string &path) : path_(path), map_(std::make_shared<MappedFile>(path)) {
  check_kind();
  parse_header();
  for (int64_t i = 0; i < gguf_get_n_tensors(header_.get()); ++i) {
    add_tensor(i);
  }
}

// What ggml would only call damaged.
void GgufFile::check_kind() const {
  constexpr size_t kLooked = 512;
  const uint8_t *data = map_->data();
  const size_t size = map_->size();
  if (size < 4 || std::memcmp(data, GGUF_MAGIC, 4) != 0) {
    fail("not a GGUF file but " + not_gguf(data, std::min(size, kLooked), size) + unfinished_download(path_));
  }
  if (size < 24) {
    fail(
        format("%zu bytes are too few for a GGUF file%s; download it again", size, unfinished_download(path_).c_str()));
  }
  uint32_t version = 0;
  std::memcpy(&version, data + 4, sizeof(version));
  if ((version & 0xffff) == 0) {
    fail(
        "a GGUF file in another byte order than this machine's: get the usual little-endian file, or convert this one "
        "(gguf-convert-endian)");
  }
  if (version < 2) {
    fail(format("GGUF version %u is no longer supported; convert the model again with a current llama.cpp", version));
  }
  if (version > GGUF_VERSION) {
    fail(format("GGUF version %u is newer than this llama.cpp, which reads up to %d, or the file is damaged", version,
                GGUF_VERSION));
  }
}

void GgufFile::parse_header() {
  const gguf_init_params params = {/*.no_alloc =*/true, /*.ctx =*/nullptr};
  const LogCapture log(ggml_log_set);
  header_.reset(map_->is_mapped() ? gguf_init_from_buffer(map_->data(), map_->size(), params)
                                  : gguf_init_from_file(path_.c_str(), params));
  if (header_ == nullptr && speaks_of_memory(log.message())) {
    throw Error(DF2_ENOMEM, format("no memory to read the header of '%s' (%s)", path_.c_str(), log.message().c_str()));
  }
  if (header_ == nullptr) {
    fail(header_remedy(log.message(), path_));
  }
}

void GgufFile::add_tensor(int64_t index) {
  TensorInfo info;
  info.name = gguf_get_tensor_name(header_.get(), index);
  info.type = gguf_get_tensor_type(header_.get(), index);
  info.size_bytes = gguf_get_tensor_size(header_.get(), index);
  std::memcpy(info.ne, gguf_get_tensor_ne(header_.get(), index), sizeof(info.ne));
  const size_t data_offset = gguf_get_data_offset(header_.get());
  const size_t offset = gguf_get_tensor_offset(header_.get(), index);
  // each test also keeps the next subtraction from wrapping
  if (data_offset > map_->size() || offset > map_->size() - data_offset ||
      info.size_bytes > map_->size() - data_offset - offset) {
    fail(format("the file is incomplete%s: tensor '%s' reaches past its end; download or convert it again",
                unfinished_download(path_).c_str(), info.name.c_str()));
  }
  info.data = map_->data() + data_offset + offset;
  tensors_.push_back(info);
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
    case GGUF_TYPE_UINT16:
      value = gguf_get_val_u16(header_.get(), id);
      break;
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
