// The bytes of a file, read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace df2 {

class MappedFile {
 public:
  // Maps the file. Where the file system refuses that, only the beginning is read, and the rest by read_all().
  // Throws Error (DF2_EIO, DF2_EFORMAT, DF2_ENOMEM).
  explicit MappedFile(const std::string &path);
  ~MappedFile();
  MappedFile(const MappedFile &) = delete;
  MappedFile &operator=(const MappedFile &) = delete;

  bool is_mapped() const { return is_mapped_; }

  // Of a file that is not mapped. Throws Error (DF2_EIO).
  void read_all();

  const uint8_t *data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void map(int descriptor);
  void read(int descriptor, size_t begin, size_t end);

  std::string path_;
  uint8_t *data_ = nullptr;
  size_t size_ = 0;
  size_t n_read_ = 0;
  bool is_mapped_ = false;
};

}  // namespace df2
