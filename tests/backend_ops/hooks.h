// The suite's doors to ggml that the harness stands in: CMakeLists.txt gives them these names while it compiles
// test-backend-ops.cpp.
#pragma once

#include <cstdint>
#include <map>

#include "ggml-backend.h"
#include "ggml.h"

namespace backend_ops {

// What was compared so far.
struct Cases {
  int64_t n_compared = 0;
  int64_t n_computed = 0;                      // of these, with at least one node computed by this library
  std::map<ggml_type, int64_t> n_with_packed;  // of these, with packed weights of a type
};

// Whether weights go into packed buffers where they can; false until then.
void set_packs_weights(bool packs);

// Whether the last node of each case is read as the output of a tapped layer; false until then.
void set_taps(bool taps);

const Cases &cases();

}  // namespace backend_ops

// test-backend-ops.cpp's main().
int backend_ops_suite(int argc, char **argv);

extern "C" {

// In place of ggml_backend_alloc_ctx_tensors().
ggml_backend_buffer_t backend_ops_alloc(ggml_context *context, ggml_backend_t backend);

// In place of ggml_backend_compare_graph_backend().
bool backend_ops_compare(ggml_backend_t tested, ggml_backend_t reference, ggml_cgraph *graph,
                         ggml_backend_eval_callback callback, void *user_data, ggml_tensor const *const *test_nodes,
                         size_t n_test_nodes);

}  // extern "C"
