#include "cpu_backend/simulated_memory.h"

#include <sys/mman.h>

#include "cpu_backend/ggml_cpu_internals.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

using AllocBuffer = decltype(ggml_backend_buffer_type_i::alloc_buffer);

std::recursive_mutex simulation_mutex;
AllocBuffer alloc_for_real = nullptr;
thread_local int n_active = 0;
thread_local uint64_t n_given = 0;

// What ggml's CPU buffer type allocates with while somebody simulates; for other threads as ever.
ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  return SimulatedMemory::is_active() ? make_simulated_buffer(type, size) : alloc_for_real(type, size);
}

// Other threads may be reading it.
void set_alloc_buffer(AllocBuffer function) {
  __atomic_store_n(&ggml_backend_cpu_buffer_type()->iface.alloc_buffer, function, __ATOMIC_RELEASE);
}

// -- ggml_backend_buffer_i; the context is the first address --------------------------------------------------------

void free_buffer(ggml_backend_buffer_t buffer) {
  munmap(buffer->context, buffer->size);
}

void *get_base(ggml_backend_buffer_t buffer) {
  return buffer->context;
}

void memset_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor * /*tensor*/, uint8_t /*value*/, size_t /*offset*/,
                   size_t /*size*/) {}

void set_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor * /*tensor*/, const void * /*data*/, size_t /*offset*/,
                size_t /*size*/) {}

void clear(ggml_backend_buffer_t /*buffer*/, uint8_t /*value*/) {}

}  // namespace

SimulatedMemory::SimulatedMemory() : lock_(simulation_mutex) {
  if (n_active++ == 0) {
    alloc_for_real = ggml_backend_cpu_buffer_type()->iface.alloc_buffer;
    set_alloc_buffer(alloc_buffer);
  }
}

SimulatedMemory::~SimulatedMemory() {
  if (--n_active == 0) {
    set_alloc_buffer(alloc_for_real);
  }
}

bool SimulatedMemory::is_active() {
  return n_active > 0;
}

uint64_t SimulatedMemory::n_bytes() {
  return n_given;
}

ggml_backend_buffer_t make_simulated_buffer(ggml_backend_buffer_type_t type, size_t size) {
  void *addresses = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) {
    return nullptr;
  }
  n_given += size;
  ggml_backend_buffer_i iface = {};
  iface.free_buffer = free_buffer;
  iface.get_base = get_base;
  iface.memset_tensor = memset_tensor;
  iface.set_tensor = set_tensor;
  iface.clear = clear;
  return ggml_backend_buffer_init(type, iface, addresses, size);
}

}  // namespace df2
