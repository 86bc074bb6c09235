// The buffer type whose tensors are packed for ops/qmm, as an extra buffer type of ggml's CPU back end.
#pragma once

#include "cpu_backend/packed_bytes.h"
#include "ggml-backend.h"

namespace df2 {

// The one buffer type of the process. Through it ggml asks for the rules of cpu_backend/rules.inc.
ggml_backend_buffer_type_t packed_buffer_type();

// What is in a buffer; zeros if it is not a packed one.
PackedBytes packed_bytes(ggml_backend_buffer_t buffer);

// In all packed buffers of the process.
PackedBytes all_packed_bytes();

// Adds up what this thread packs while it exists.
class PackedCount {
 public:
  PackedCount();
  ~PackedCount();
  PackedCount(const PackedCount &) = delete;
  PackedCount &operator=(const PackedCount &) = delete;
  const PackedBytes &bytes() const { return bytes_; }

  // Bytes that there was no memory for; 0: there was for all.
  uint64_t refused() const { return refused_; }

  // Tells the thread's innermost one.
  static void note_refusal(uint64_t n_bytes);

 private:
  friend class PackedBuffer;
  PackedBytes bytes_;
  uint64_t refused_ = 0;
  PackedCount *outer_;
};

}  // namespace df2
