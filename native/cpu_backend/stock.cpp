#include "cpu_backend/stock.h"

#include <algorithm>
#include <mutex>

namespace df2 {

namespace {

thread_local bool wants_stock = false;

// Never destroyed, as whoever reads it. Graphs are planned on several threads, models come and go on others.
struct Buffers {
  std::mutex mutex;
  std::vector<ggml_backend_buffer_t> list;
};

Buffers &stock_buffers() {
  static auto *buffers = new Buffers();
  return *buffers;
}

}  // namespace

StockWeights::StockWeights(bool enabled) : before_(wants_stock) {
  wants_stock = wants_stock || enabled;
}

StockWeights::~StockWeights() {
  wants_stock = before_;
}

bool wants_stock_weights() {
  return wants_stock;
}

StockBuffers::StockBuffers(std::vector<ggml_backend_buffer_t> buffers) : buffers_(std::move(buffers)) {
  Buffers &all = stock_buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.list.insert(all.list.end(), buffers_.begin(), buffers_.end());
}

StockBuffers::~StockBuffers() {
  Buffers &all = stock_buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const ggml_backend_buffer_t buffer : buffers_) {
    all.list.erase(std::find(all.list.begin(), all.list.end(), buffer));
  }
}

bool is_stock_buffer(ggml_backend_buffer_t buffer) {
  Buffers &all = stock_buffers();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return std::find(all.list.begin(), all.list.end(), buffer) != all.list.end();
}

}  // namespace df2
