#include "target/target_bytes.h"

#include <cstring>
#include <set>
#include <string>

#include "cpu_backend/packed_buffer.h"
#include "ggml-cpu.h"
#include "llama.h"
#include "target/llama_internals.h"

namespace df2 {

namespace {

// What layers keep between decodes: tensors that only their names tell apart.
enum class Kept { kNothing, kState, kCache };

Kept kept_in(const std::string &name) {
  for (const char *state : {"cache_r_l", "cache_s_l", "cache_ple_r_l"}) {
    if (name.compare(0, std::strlen(state), state) == 0) {
      return Kept::kState;
    }
  }
  if (name.compare(0, 5, "dsv4_") == 0 && name.find("_state_") != std::string::npos) {
    return Kept::kState;
  }
  return name.compare(0, 6, "cache_") == 0 ? Kept::kCache : Kept::kNothing;
}

std::set<const ggml_tensor *> kept_tensors(ggml_cgraph *graph) {
  std::set<const ggml_tensor *> kept;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    for (const ggml_tensor *source : ggml_graph_node(graph, i)->src) {
      const ggml_tensor *root = source != nullptr && source->view_src != nullptr ? source->view_src : source;
      if (root != nullptr && kept_in(root->name) != Kept::kNothing) {
        kept.insert(root);
      }
    }
  }
  return kept;
}

// Divides the bytes of all caches and states among them. Some layers' are in no graph, and buffers have padding: that
// is the attention's, if there is any.
void add_kept(const llama_context *context, ggml_cgraph *graph, uint64_t all, TargetBytes *bytes) {
  uint64_t attention = 0;
  for (const ggml_tensor *tensor : kept_tensors(graph)) {
    const bool is_window = tensor->ne[1] < static_cast<int64_t>(llama_n_ctx_seq(context));
    uint64_t &kind = kept_in(tensor->name) == Kept::kState ? bytes->state : is_window ? bytes->window : attention;
    kind += ggml_nbytes(tensor);
  }
  uint64_t &rest = attention > 0 ? bytes->attention : bytes->window > 0 ? bytes->window : bytes->state;
  rest = 0;
  rest = all - bytes->window - bytes->state - bytes->attention;
}

}  // namespace

TargetBytes bytes_of(const llama_context *context, ggml_cgraph *graph, bool can_map) {
  TargetBytes bytes;
  uint64_t kept = 0;
  for (const auto &[type, part] : llama_get_memory_breakdown(context)) {
    const bool is_mapped = can_map && ggml_backend_buft_is_host(type);
    uint64_t &weights = is_mapped ? bytes.mapped : type == packed_buffer_type() ? bytes.packed : bytes.copied;
    weights += part.model;
    bytes.compute += part.compute;
    kept += part.context;
  }
  add_kept(context, graph, kept, &bytes);
  bytes.work = ggml_graph_plan(graph, llama_n_threads(const_cast<llama_context *>(context)), nullptr).work_size;
  return bytes;
}

}  // namespace df2
