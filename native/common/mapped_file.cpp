#include "common/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/file_kind.h"

namespace df2 {

namespace {

constexpr size_t kBeginning = 4096;  // to tell what the file is

class Descriptor {
 public:
  explicit Descriptor(const std::string &path) : number(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (number < 0) {
      throw Error(DF2_EIO, format("'%s': %s", path.c_str(), not_a_file(path, errno).c_str()));
    }
  }
  ~Descriptor() { close(number); }
  Descriptor(const Descriptor &) = delete;
  Descriptor &operator=(const Descriptor &) = delete;

  const int number;
};

}  // namespace

MappedFile::MappedFile(const std::string &path) : path_(path) {
  const Descriptor descriptor(path);
  struct stat status;
  if (fstat(descriptor.number, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw Error(DF2_EIO, format("'%s': %s", path.c_str(), not_a_file(path, 0).c_str()));
  }
  if (status.st_size == 0) {
    throw Error(DF2_EFORMAT, format("'%s': the file is empty: download it again", path.c_str()));
  }
  size_ = static_cast<size_t>(status.st_size);
  map(descriptor.number);
  if (!is_mapped_) {
    try {
      read(descriptor.number, 0, std::min(size_, kBeginning));
    } catch (const Error &) {
      munmap(data_, size_);
      throw;
    }
  }
}

MappedFile::~MappedFile() {
  munmap(data_, size_);
}

void MappedFile::map(int descriptor) {
  void *view = mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  is_mapped_ = view != MAP_FAILED;
  if (!is_mapped_) {
    const int problem = errno;
    view = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (view == MAP_FAILED) {
      throw Error(DF2_ENOMEM, format("'%s' can be neither mapped (%s) nor read into memory (%s)", path_.c_str(),
                                     std::strerror(problem), std::strerror(errno)));
    }
    log_line(DF2_LOG_INFO, format("'%s' cannot be mapped (%s): it is read", path_.c_str(), std::strerror(problem)));
  }
  data_ = static_cast<uint8_t *>(view);
}

void MappedFile::read(int descriptor, size_t begin, size_t end) {
  constexpr size_t kMostAtOnce = size_t{1} << 30;  // Linux reads no more than 2 GiB
  for (n_read_ = begin; n_read_ < end;) {
    const ssize_t n =
        pread(descriptor, data_ + n_read_, std::min(end - n_read_, kMostAtOnce), static_cast<off_t>(n_read_));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      throw Error(DF2_EIO, format("'%s' cannot be read: %s", path_.c_str(),
                                  n < 0 ? std::strerror(errno) : "it ends before its size says"));
    }
    n_read_ += static_cast<size_t>(n);
  }
}

void MappedFile::read_all() {
  if (!is_mapped_ && n_read_ < size_) {
    read(Descriptor(path_).number, n_read_, size_);
  }
}

}  // namespace df2
