// The pages of a mapped model file that its weights were packed from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace df2 {

// Once packed, weights are not read from the file any more, but llama.cpp keeps it mapped. Telling the operating system
// keeps them from being in memory twice. Only on Linux; elsewhere nothing happens until memory is short.
class SourcePages {
 public:
  // The part will not be read soon. Does nothing unless it belongs to a read-only mapping of a file, whose contents
  // come back when they are read after all: by llama.cpp's check_tensors, for example, on a thread of its own. Pages
  // that llama.cpp has locked into memory (use_mlock) are unlocked, unless they are embeddings that it goes on reading.
  void forget(const void *data, size_t n_bytes, bool is_still_read);

 private:
  bool is_mapped_ = true;  // until the first data that is not: a model comes from a mapping or from somewhere else
  uintptr_t begin_ = 0;    // the mapping that the last data was in
  uintptr_t end_ = 0;
};

}  // namespace df2
