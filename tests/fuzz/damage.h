// Seeded damage to GGUF files.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gguf.h"

using Bytes = std::vector<char>;

inline Bytes read_file(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

inline void write_file(const std::string &path, const Bytes &bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline size_t header_size(const std::string &path) {
  gguf_context *header = gguf_init_from_file(path.c_str(), {true, nullptr});
  const size_t size = gguf_get_data_offset(header);
  gguf_free(header);
  return size;
}

// One kind of damage per call: a flipped bit, a hostile number, a cut, or a piece of the header written over another.
inline void damage(Bytes *bytes, size_t n_header, std::mt19937 *generator) {
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(*generator); };
  static const uint64_t kHostile[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_MAX, INT64_MAX, 1ull << 40};
  switch (below(8)) {
    case 0:
      bytes->resize(below(bytes->size()));
      break;
    case 1: {
      const size_t length = 1 + below(64);
      const size_t from = below(n_header - length);
      const size_t to = below(n_header - length);
      std::memmove(bytes->data() + to, bytes->data() + from, length);
      break;
    }
    case 2:
    case 3: {
      const uint64_t value = kHostile[below(std::size(kHostile))];
      const size_t width = below(2) == 0 ? 4 : 8;
      std::memcpy(bytes->data() + below(n_header - width), &value, width);
      break;
    }
    default:
      (*bytes)[below(n_header)] ^= static_cast<char>(1 << below(8));
      break;
  }
}
