#include "llama/source_pages.h"

#if defined(__linux__)

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
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

}  // namespace

void SourcePages::forget(const void *data, size_t n_bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(data);
  if (is_mapped_ && (first < begin_ || first + n_bytes > end_)) {
    is_mapped_ = find_file_mapping(first, &begin_, &end_) && first + n_bytes <= end_;
  }
  // pages that other weights have a part of stay
  const uintptr_t begin = (first + page - 1) / page * page;
  const uintptr_t end = (first + n_bytes) / page * page;
  if (is_mapped_ && begin < end) {
    madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED);
  }
}

}  // namespace df2

#else

namespace df2 {

void SourcePages::forget(const void * /*data*/, size_t /*n_bytes*/) {}

}  // namespace df2

#endif
