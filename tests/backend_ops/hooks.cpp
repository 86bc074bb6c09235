#include "hooks.h"

#include <optional>
#include <vector>

#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/rule_taps.h"
#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "probe.h"

namespace backend_ops {

namespace {

// Shares of three threads are uneven, on any number of cores.
constexpr int kTestedThreads = 3;
constexpr int kReferenceThreads = 2;

bool packs_weights = false;
bool taps_outputs = false;
Cases counted;

// What the case at hand has packed. The suite runs one case at a time.
struct {
  std::vector<ggml_backend_buffer_ptr> buffers;
  ggml_type type = GGML_TYPE_COUNT;
} packed;

bool reads(const ggml_tensor *node, const ggml_tensor *tensor) {
  for (const ggml_tensor *source : node->src) {
    if (source == tensor) {
      return true;
    }
  }
  return node->view_src == tensor;
}

// Asks as llama.cpp does while it loads a model: by a buffer of no size.
bool supports(ggml_backend_dev_t device, ggml_tensor *node, ggml_tensor *weights) {
  const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(df2::packed_buffer_type(), 0));
  weights->buffer = nothing.get();
  const bool is_supported = ggml_backend_dev_supports_op(device, node);
  weights->buffer = nullptr;
  return is_supported;
}

// Whether a tensor is used as a matrix that can be packed, and as nothing else.
bool can_pack(ggml_context *context, ggml_backend_dev_t device, ggml_tensor *tensor) {
  if (tensor->op != GGML_OP_NONE || tensor->view_src != nullptr) {
    return false;
  }
  bool is_used = false;
  for (ggml_tensor *node = ggml_get_first_tensor(context); node != nullptr;
       node = ggml_get_next_tensor(context, node)) {
    if (!reads(node, tensor)) {
      continue;
    }
    const bool is_product = node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
    if (!is_product || node->src[0] != tensor || !supports(device, node, tensor)) {
      return false;
    }
    is_used = true;
  }
  return is_used;
}

bool pack(ggml_tensor *weights) {
  ggml_backend_buffer_type_t type = df2::packed_buffer_type();
  ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, weights)));
  if (buffer == nullptr ||
      ggml_backend_tensor_alloc(buffer.get(), weights, ggml_backend_buffer_get_base(buffer.get())) !=
          GGML_STATUS_SUCCESS) {
    return false;
  }
  packed.buffers.push_back(std::move(buffer));
  packed.type = weights->type;
  return true;
}

}  // namespace

// The suite's own sentinels stand behind it.
ggml_tensor *result_of(ggml_cgraph *graph) {
  int last = ggml_graph_n_nodes(graph) - 1;
  while (last > 0 && ggml_graph_node(graph, last)->op == GGML_OP_NONE) {
    --last;
  }
  return ggml_graph_node(graph, last);
}

// Reads a case's result as the output of a layer, while it exists.
class Tap {
 public:
  explicit Tap(ggml_tensor *output) : features_(static_cast<size_t>(ggml_nelements(output))), scope_(&recorder_) {
    ggml_set_name(output, "l_out-0");
    const df2::TapForm form = output->ne[2] == 1 ? df2::TapForm::kRow : df2::TapForm::kFirstStream;
    recorder_.select({1}, output->ne[0], form);
    recorder_.begin(features_.data(), output->ne[1]);
  }

 private:
  std::vector<float> features_;
  df2::TapRecorder recorder_;
  df2::TapScope scope_;
};

void set_taps(bool taps) {
  taps_outputs = taps;
}

void set_packs_weights(bool packs) {
  packs_weights = packs;
}

const Cases &cases() {
  return counted;
}

}  // namespace backend_ops

extern "C" {

using namespace backend_ops;

ggml_backend_buffer_t backend_ops_alloc(ggml_context *context, ggml_backend_t backend) {
  if (packs_weights) {
    for (ggml_tensor *tensor = ggml_get_first_tensor(context); tensor != nullptr;
         tensor = ggml_get_next_tensor(context, tensor)) {
      if (can_pack(context, ggml_backend_get_device(backend), tensor) && !pack(tensor)) {
        return nullptr;
      }
    }
  }
  return ggml_backend_alloc_ctx_tensors(context, backend);  // what has no place yet
}

bool backend_ops_compare(ggml_backend_t tested, ggml_backend_t reference, ggml_cgraph *graph,
                         ggml_backend_eval_callback callback, void *user_data, ggml_tensor const *const *test_nodes,
                         size_t n_test_nodes) {
  ggml_backend_cpu_set_n_threads(tested, kTestedThreads);
  ggml_backend_cpu_set_n_threads(reference, kReferenceThreads);
  const int64_t n_before = probe_counts().computed;
  std::optional<Tap> tap;
  if (taps_outputs) {
    tap.emplace(result_of(graph));
  }
  const bool is_compared =
      ggml_backend_compare_graph_backend(tested, reference, graph, callback, user_data, test_nodes, n_test_nodes);
  if (is_compared) {
    ++counted.n_compared;
    counted.n_computed += probe_counts().computed > n_before ? 1 : 0;
    if (!packed.buffers.empty()) {
      ++counted.n_with_packed[packed.type];
    }
  }
  packed.buffers.clear();  // the suite reads nothing of the case any more
  return is_compared;
}

}  // extern "C"
