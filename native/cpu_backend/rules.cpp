#include "cpu_backend/rules.h"

#include <algorithm>
#include <mutex>

#include "cpu_backend/cell_places.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/rule.h"
#include "cpu_backend/stock.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

const Rule *first_match(const ggml_tensor *op) {
  using Get = const Rule &(*)();
  static constexpr Get kRules[] = {
#define DF2_RULE(name) rules::name,
#include "cpu_backend/rules.inc"
#undef DF2_RULE
  };
  for (const Get get : kRules) {
    const Rule &rule = get();
    if ((!wants_stock() || !rule.can_stand_aside()) && rule.matches(op)) {
      return &rule;
    }
  }
  return nullptr;
}

const Claim *claim_of(const ggml_tensor *op) {
  const auto *claim = static_cast<const Claim *>(op->extra);
  return claim != nullptr && claim->magic == Claim::kMagic ? claim : nullptr;
}

// The work area ggml would ask for if a node were its own. It may be after all: whether the reference implementation is
// wanted is not known when a graph is planned.
class StockWork {
 public:
  size_t bytes(int n_threads, ggml_tensor *op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ggml_graph_clear(graph_);
    ggml_graph_add_node(graph_, op);
    const Asking asking;
    return ggml_graph_plan(graph_, n_threads, nullptr).work_size;
  }

  // Whether this thread is asking: rules do not match meanwhile.
  static thread_local bool is_asking;

 private:
  // Ends even where ggml gives up: a LoadGuard makes an exception of that.
  struct Asking {
    Asking() { is_asking = true; }
    ~Asking() { is_asking = false; }
  };

  std::mutex mutex_;
  ggml_context_ptr context_{ggml_init({ggml_graph_overhead_custom(1, false), nullptr, true})};
  ggml_cgraph *graph_ = ggml_new_graph_custom(context_.get(), 1, false);
};

thread_local bool StockWork::is_asking = false;

StockWork &stock_work() {
  static auto *work = new StockWork();
  return *work;
}

class RuleTable final : public ggml::cpu::tensor_traits {
 public:
  bool work_size(int n_threads, const ggml_tensor *op, size_t &size) override {
    if (StockWork::is_asking) {
      return false;
    }
    auto *node = const_cast<ggml_tensor *>(op);  // the graph is the caller's, who is about to compute it
    const Claim *earlier = claim_of(op);
    const bool is_left = earlier != nullptr && earlier->rule == nullptr;
    if (earlier != nullptr && !is_left) {
      node->extra = nullptr;  // of an earlier plan
    }
    if (op->op == GGML_OP_SET_ROWS) {
      note_cache_write(op);
    }
    const Rule *rule = is_left ? nullptr : first_match(op);
    if (rule == nullptr) {
      refuse_packed(op);
      return false;
    }
    size = rule->work_bytes(n_threads, op);
    if (rule->can_stand_aside()) {
      size = std::max(size, stock_work().bytes(n_threads, node));
    }
    node->extra = const_cast<Claim *>(rule->claim(node));
    return true;
  }

  bool compute_forward(ggml_compute_params *params, ggml_tensor *op) override {
    const Claim *claim = claim_of(op);
    if (claim == nullptr || claim->rule == nullptr || (params->use_ref && claim->rule->can_stand_aside())) {
      return false;
    }
    claim->rule->compute(*params, op);
    return !claim->rule->only_reads();
  }

 private:
  // ggml itself would take packed bytes for plain weights.
  static void refuse_packed(const ggml_tensor *op) {
    if (is_packed(op->src[0]) && !is_view(op)) {
      GGML_ABORT("dflash2: %s of the packed weights %s is not supported; load the model with kernels off",
                 ggml_op_name(op->op), op->src[0]->name);
    }
  }
};

}  // namespace

ggml::cpu::tensor_traits *rule_table() {
  static auto *table = new RuleTable();  // never destroyed: ggml may ask until the process is gone
  return table;
}

}  // namespace df2
