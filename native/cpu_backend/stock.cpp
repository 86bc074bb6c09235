#include "cpu_backend/stock.h"

#include <atomic>

#include "cpu_backend/rule.h"

namespace df2 {

namespace {

std::atomic<bool> are_kernels_trusted{false};

// Read when a weight is placed and when a graph is planned, on the thread that does it; never while one is computed.
thread_local bool is_wanted = false;
thread_local bool is_testing = false;

}  // namespace

StockScope::StockScope(bool enabled) : before_(is_wanted) {
  is_wanted = is_wanted || enabled;
}

StockScope::~StockScope() {
  is_wanted = before_;
}

KernelTestScope::KernelTestScope() {
  is_testing = true;
}

KernelTestScope::~KernelTestScope() {
  is_testing = false;
}

void trust_kernels() {
  are_kernels_trusted = true;
}

bool wants_stock() {
  return is_wanted || !(are_kernels_trusted || is_testing);
}

void leave_to_ggml(ggml_tensor *node) {
  static const Claim kNobodys = {Claim::kMagic, nullptr};
  node->extra = const_cast<Claim *>(&kNobodys);
}

}  // namespace df2
