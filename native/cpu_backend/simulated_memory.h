// Memory that only has addresses: to find out what something takes by making it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "ggml-backend.h"

namespace df2 {

// While one exists, buffers that this thread gets for the CPU, packed ones included, take address space alone: pages
// appear when somebody writes to them, which clearing a buffer or filling it through ggml does not do. Nothing can be
// computed with what is in them. Such buffers may outlive it. Threads wait for each other; within another one of the
// same thread it adds nothing.
class SimulatedMemory {
 public:
  SimulatedMemory();
  ~SimulatedMemory();
  SimulatedMemory(const SimulatedMemory &) = delete;
  SimulatedMemory &operator=(const SimulatedMemory &) = delete;

  // Whether this thread has one.
  static bool is_active();

  // Bytes that this thread has been given so far.
  static uint64_t n_bytes();

 private:
  const std::lock_guard<std::recursive_mutex> lock_;
};

// A buffer of this kind; null if there are not even the addresses.
ggml_backend_buffer_t make_simulated_buffer(ggml_backend_buffer_type_t type, size_t size);

}  // namespace df2
