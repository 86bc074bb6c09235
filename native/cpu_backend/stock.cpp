#include "cpu_backend/stock.h"

#include "cpu_backend/rule.h"

namespace df2 {

namespace {

// Read when a weight is placed and when a graph is planned, on the thread that does it; never while one is computed.
thread_local bool is_wanted = false;

}  // namespace

StockScope::StockScope(bool enabled) : before_(is_wanted) {
  is_wanted = is_wanted || enabled;
}

StockScope::~StockScope() {
  is_wanted = before_;
}

bool wants_stock() {
  return is_wanted;
}

void leave_to_ggml(ggml_tensor *node) {
  static const Claim kNobodys = {Claim::kMagic, nullptr};
  node->extra = const_cast<Claim *>(&kNobodys);
}

}  // namespace df2
