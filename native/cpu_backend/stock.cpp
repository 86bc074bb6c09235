#include "cpu_backend/stock.h"

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

}  // namespace df2
