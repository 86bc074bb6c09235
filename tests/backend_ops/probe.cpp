#include "probe.h"

#include <atomic>

#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_buffer.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

namespace backend_ops {

namespace {

struct {
  std::atomic<int64_t> computed{0};
  std::atomic<int64_t> left{0};
  std::atomic<int64_t> ref_computed{0};
  std::atomic<int64_t> ref_left{0};
  std::atomic<int64_t> ref_starved{0};
} counts;

// While true, this thread's questions get the answers of a ggml without this library.
thread_local bool is_hidden = false;

// What ggml itself wants for a node.
size_t stock_work_size(ggml_tensor *op, int n_threads) {
  ggml_context_ptr context(ggml_init({ggml_graph_overhead_custom(1, false), nullptr, true}));
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 1, false);
  ggml_graph_add_node(graph, op);
  is_hidden = true;
  const size_t size = ggml_graph_plan(graph, n_threads, nullptr).work_size;
  is_hidden = false;
  return size;
}

void count(const ggml_compute_params &params, ggml_tensor *op, bool is_computed) {
  if (params.ith != 0) {
    return;
  }
  if (!params.use_ref) {
    ++(is_computed ? counts.computed : counts.left);
    return;
  }
  ++(is_computed ? counts.ref_computed : counts.ref_left);
  if (!is_computed && params.wsize < stock_work_size(op, params.nth)) {
    ++counts.ref_starved;
  }
}

class WatchedTraits final : public ggml::cpu::tensor_traits {
 public:
  ggml::cpu::tensor_traits *watch(ggml::cpu::tensor_traits *inner) {
    inner_ = inner;
    return this;
  }

  bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override {
    return inner_->work_size(n_threads, op, size);
  }

  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override {
    const bool is_computed = inner_->compute_forward(params, op);
    count(*params, op, is_computed);
    return is_computed;
  }

 private:
  ggml::cpu::tensor_traits *inner_ = nullptr;
};

class Probe final : public ggml::cpu::extra_buffer_type {
 public:
  explicit Probe(ggml::cpu::extra_buffer_type *inner) : inner_(inner) {}

  bool supports_op(ggml_backend_dev_t device, const ggml_tensor *op) override {
    return inner_->supports_op(device, op);
  }

  ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor *op) override {
    // a thread uses what it gets before it asks again
    static thread_local WatchedTraits watched;
    ggml::cpu::tensor_traits *traits = is_hidden ? nullptr : inner_->get_tensor_traits(op);
    return traits != nullptr ? watched.watch(traits) : nullptr;
  }

 private:
  ggml::cpu::extra_buffer_type *inner_;
};

}  // namespace

void install_probe() {
  ggml_backend_buffer_type_t type = df2::packed_buffer_type();
  static Probe probe(static_cast<ggml::cpu::extra_buffer_type *>(type->context));
  type->context = &probe;
}

ProbeCounts probe_counts() {
  return {counts.computed, counts.left, counts.ref_computed, counts.ref_left, counts.ref_starved};
}

}  // namespace backend_ops
