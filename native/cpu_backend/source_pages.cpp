#include "cpu_backend/source_pages.h"

#if defined(__linux__)

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

namespace df2 {

namespace {

// Finds the read-only mapping of a file that holds the address.
bool find_file_mapping(uintptr_t address, uintptr_t *begin, uintptr_t *end) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    unsigned long long inode = 0;
    char access[5] = "";
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %*s %*s %llu", &first, &last, access, &inode) == 4 &&
        first <= address && address < last) {
      *begin = first;
      *end = last;
      return inode != 0 && access[0] == 'r' && access[1] == '-';
    }
  }
  return false;
}

void drop(void *pages, size_t n_bytes, bool may_unlock) {
  const bool is_locked = madvise(pages, n_bytes, MADV_DONTNEED) != 0 && errno == EINVAL;
  if (is_locked && may_unlock && munlock(pages, n_bytes) == 0) {
    madvise(pages, n_bytes, MADV_DONTNEED);
  }
}

}  // namespace

void SourcePages::forget(const void *data, size_t n_bytes, bool is_still_read) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(data);
  if (is_mapped_ && (first < begin_ || first + n_bytes > end_)) {
    try {
      is_mapped_ = find_file_mapping(first, &begin_, &end_) && first + n_bytes <= end_;
    } catch (const std::exception &) {
      return;  // no memory for a file to be read: no reason to fail
    }
  }
  // pages that other weights have a part of stay
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + n_bytes) / page * page;
  if (is_mapped_ && begin < end) {
    drop(reinterpret_cast<void *>(begin), end - begin, !is_still_read);
  }
}

}  // namespace df2

#else

namespace df2 {

void SourcePages::forget(const void * /*data*/, size_t /*n_bytes*/, bool /*is_still_read*/) {}

}  // namespace df2

#endif
