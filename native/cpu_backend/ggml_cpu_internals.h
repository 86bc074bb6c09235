// What this project uses of ggml and its CPU back end beyond their public headers: exported symbols whose declarations
// (in ggml-backend-impl.h, ggml-cpu-impl.h and ggml-cpu/traits.h) are not installed. Checked against llama.cpp 0c1e570
// (llama-cpp-python 0.3.36), and at run time by the self-test, before any model sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"

#define DF2_GGML_CLASS __attribute__((visibility("default")))

struct ggml_threadpool;

extern "C" {

// What a thread is told when it computes a node.
struct ggml_compute_params {
  int ith;  // this thread
  int nth;  // of so many
  size_t wsize;
  void *wdata;  // shared by the threads; 16-byte aligned at best
  ggml_threadpool *threadpool;
  bool use_ref;
};

// All threads of a graph wait for each other.
void ggml_barrier(ggml_threadpool *threadpool);

struct ggml_backend_buffer_type_i {
  const char *(*get_name)(ggml_backend_buffer_type_t type);
  ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t type, size_t size);
  size_t (*get_alignment)(ggml_backend_buffer_type_t type);
  size_t (*get_max_size)(ggml_backend_buffer_type_t type);                                      // may be null
  size_t (*get_alloc_size)(ggml_backend_buffer_type_t type, const struct ggml_tensor *tensor);  // may be null
  bool (*is_host)(ggml_backend_buffer_type_t type);                                             // may be null
};

struct ggml_backend_buffer_type {
  ggml_backend_buffer_type_i iface;
  ggml_backend_dev_t device;
  void *context;  // of the CPU's extra types: a ggml::cpu::extra_buffer_type
};

struct ggml_backend_buffer_i {
  void (*free_buffer)(ggml_backend_buffer_t buffer);
  void *(*get_base)(ggml_backend_buffer_t buffer);
  enum ggml_status (*init_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor);
  void (*memset_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value, size_t offset,
                        size_t size);
  void (*set_tensor)(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                     size_t size);
  void (*get_tensor)(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data, size_t offset,
                     size_t size);
  void (*set_tensor_2d)(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                        size_t size, size_t n_copies, size_t stride_tensor, size_t stride_data);
  void (*get_tensor_2d)(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data, size_t offset,
                        size_t size, size_t n_copies, size_t stride_tensor, size_t stride_data);
  bool (*cpy_tensor)(ggml_backend_buffer_t buffer, const struct ggml_tensor *src, struct ggml_tensor *dst);
  void (*clear)(ggml_backend_buffer_t buffer, uint8_t value);
  void (*reset)(ggml_backend_buffer_t buffer);
};

struct ggml_backend_buffer {
  ggml_backend_buffer_i iface;
  ggml_backend_buffer_type_t buft;
  void *context;
  size_t size;
  enum ggml_backend_buffer_usage usage;
};

ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t type, ggml_backend_buffer_i iface,
                                               void *context, size_t size);

}  // extern "C"

namespace ggml::cpu {

// How a node with a source in an extra buffer is computed instead of ggml's own way.
class DF2_GGML_CLASS tensor_traits {
 public:
  virtual ~tensor_traits();
  // Bytes of the shared work area; false leaves the question to ggml.
  virtual bool work_size(int n_threads, const ggml_tensor *op, size_t &size) = 0;
  // Called by every thread of the graph; false leaves the node to ggml.
  virtual bool compute_forward(ggml_compute_params *params, ggml_tensor *op) = 0;
};

class DF2_GGML_CLASS extra_buffer_type {
 public:
  virtual ~extra_buffer_type();
  // Whether a node that reads a tensor in this type of buffer can be computed.
  virtual bool supports_op(ggml_backend_dev_t device, const ggml_tensor *op) = 0;
  // Asked about every node of every graph, by every thread; null: not ours.
  virtual tensor_traits *get_tensor_traits(const ggml_tensor *op) = 0;
};

}  // namespace ggml::cpu

// The list that the CPU back end goes through for each node. llama.cpp places weights by a copy of it, made when the
// process loads its first model.
std::vector<ggml_backend_buffer_type_t> &ggml_backend_cpu_get_extra_buffer_types();
