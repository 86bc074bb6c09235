#include "cpu_backend/packed_buffer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "common/cpu_count.h"
#include "common/memory_limit.h"
#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/rules.h"
#include "cpu_backend/simulated_memory.h"
#include "cpu_backend/source_pages.h"
#include "cpu_backend/stock.h"
#include "ggml-cpu.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace df2 {

namespace {

constexpr char kName[] = "DFLASH2";
constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = 2 * 1024 * 1024;
// Weights are read from end to end for every token: worth a thread per core to pack them, and huge pages to hold them.
constexpr size_t kBig = 4 * 1024 * 1024;
constexpr int32_t kMaxPackingThreads = 8;

std::atomic<uint64_t> total_packed{0};
std::atomic<uint64_t> total_copied{0};
thread_local PackedCount *current_count = nullptr;

// Asked of the system once: a model has hundreds of weights.
int32_t packing_threads() {
  static const int32_t n = std::min(default_threads().n, kMaxPackingThreads);
  return n;
}

// Calls work(i), which must not throw, for every i < n, on several threads if there is a lot to do.
template <typename Work>
void for_each_index(int64_t n, bool is_big, const Work &work) {
  std::atomic<int64_t> next{0};
  const auto run = [&] {
    constexpr int64_t kStep = 8;
    for (int64_t i = next.fetch_add(kStep); i < n; i = next.fetch_add(kStep)) {
      for (int64_t j = i; j < std::min(n, i + kStep); ++j) {
        work(j);
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    const int32_t n_helpers = is_big ? packing_threads() - 1 : 0;
    helpers.reserve(static_cast<size_t>(n_helpers));  // a vector that must grow would end with joinable threads in it
    for (int32_t i = 0; i < n_helpers; ++i) {
      helpers.emplace_back(run);
    }
  } catch (const std::exception &) {
    // no memory or no threads: fewer of them, then
  }
  run();
  for (std::thread &helper : helpers) {
    helper.join();
  }
}

}  // namespace

// The memory behind one ggml buffer.
class PackedBuffer {
 public:
  // Throws std::bad_alloc.
  explicit PackedBuffer(size_t size)
      : alignment_(size >= kBig ? kHugePage : kAlignment),
        base_(static_cast<uint8_t *>(::operator new(size, std::align_val_t(alignment_)))) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (size >= kBig) {
      madvise(base_, size, MADV_HUGEPAGE);
    }
#endif
  }

  ~PackedBuffer() {
    total_packed -= bytes_.packed;
    total_copied -= bytes_.copied;
    ::operator delete(base_, std::align_val_t(alignment_));
  }

  PackedBuffer(const PackedBuffer &) = delete;
  PackedBuffer &operator=(const PackedBuffer &) = delete;

  uint8_t *base() const { return base_; }
  const PackedBytes &bytes() const { return bytes_; }

  // `size` bytes of the weights as ggml stores them, from `offset` on.
  void get(const ggml_tensor *tensor, uint8_t *data, size_t offset, size_t size) {
    const PackedMatrices matrices(tensor);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto row_bytes = static_cast<int64_t>(matrices.row_bytes());
    const auto begin = static_cast<int64_t>(offset);
    const auto end = static_cast<int64_t>(offset + size);
    const int64_t first = (begin + row_bytes - 1) / row_bytes;
    const int64_t last = end / row_bytes;
    const auto copy_part = [&](int64_t row) {
      std::vector<uint8_t> whole(matrices.row_bytes());
      matrices.unpack(whole.data(), row);
      const int64_t from = std::max(begin, row * row_bytes);
      const int64_t to = std::min(end, (row + 1) * row_bytes);
      std::memcpy(data + (from - begin), whole.data() + (from - row * row_bytes), static_cast<size_t>(to - from));
    };
    if (begin < first * row_bytes) {
      copy_part(first - 1);
    }
    for_each_index(last - first, size >= kBig,
                   [&](int64_t i) { matrices.unpack(data + (first + i) * row_bytes - begin, first + i); });
    if (last >= first && end > last * row_bytes) {
      copy_part(last);
    }
  }

  // Weights may come in parts, in any order, each part once; they are packed when the last one is there.
  void set(const ggml_tensor *tensor, const void *data, size_t offset, size_t size) {
    const size_t whole = ggml_nbytes(tensor);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (size == whole) {
      pack(tensor, data);
      source_.forget(data, size, is_copy(tensor));
      return;
    }
    Parts &parts = incomplete_[tensor];
    parts.data.resize(whole);
    std::memcpy(parts.data.data() + offset, data, size);
    parts.n_bytes += size;
    if (parts.n_bytes >= whole) {
      pack(tensor, parts.data.data());
      incomplete_.erase(tensor);
    }
  }

 private:
  struct Parts {
    std::vector<uint8_t> data;
    size_t n_bytes = 0;
  };

  void pack(const ggml_tensor *tensor, const void *data) {
    const PackedMatrices matrices(tensor);
    for_each_index(matrices.n_tiles(), ggml_nbytes(tensor) >= kBig,
                   [&](int64_t tile) { matrices.pack(static_cast<const uint8_t *>(data), tile); });
    count(packed_size(tensor), is_copy(tensor));
  }

  void count(size_t n_bytes, bool copied) {
    bytes_.packed += n_bytes;
    bytes_.copied += copied ? n_bytes : 0;
    total_packed += n_bytes;
    total_copied += copied ? n_bytes : 0;
    if (current_count != nullptr) {
      current_count->bytes_.packed += n_bytes;
      current_count->bytes_.copied += copied ? n_bytes : 0;
    }
  }

  const size_t alignment_;
  uint8_t *const base_;
  PackedBytes bytes_;
  std::mutex mutex_;
  SourcePages source_;
  std::map<const ggml_tensor *, Parts> incomplete_;
};

namespace {

PackedBuffer *contents(ggml_backend_buffer_t buffer) {
  return static_cast<PackedBuffer *>(buffer->context);
}

// -- ggml_backend_buffer_i ----------------------------------------------------------------------------------------

void free_buffer(ggml_backend_buffer_t buffer) {
  delete contents(buffer);
}

void *get_base(ggml_backend_buffer_t buffer) {
  return contents(buffer)->base();
}

enum ggml_status init_tensor(ggml_backend_buffer_t /*buffer*/, struct ggml_tensor *tensor) {
  if (tensor->view_src != nullptr) {
    return GGML_STATUS_SUCCESS;  // whoever computes with it is told when the graph is planned
  }
  return can_pack(tensor) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

// The weights that a tensor is, or shows.
const ggml_tensor *root(const ggml_tensor *tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                size_t size) {
  try {
    contents(buffer)->set(root(tensor), data, offset + tensor->view_offs, size);
  } catch (const std::bad_alloc &) {
    PackedCount::note_refusal(size);
    throw;
  }
}

void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data, size_t offset,
                size_t size) {
  contents(buffer)->get(root(tensor), static_cast<uint8_t *>(data), offset + tensor->view_offs, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
  std::memset(contents(buffer)->base(), value, buffer->size);
}

// -- ggml_backend_buffer_type_i -----------------------------------------------------------------------------------

const char *get_name(ggml_backend_buffer_type_t /*type*/) {
  return kName;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  if (SimulatedMemory::is_active()) {
    return make_simulated_buffer(type, size);
  }
  try {
    // a system that promises more than it has would end some process once the weights are written
    if (size >= kBig && size > available_memory()) {
      throw std::bad_alloc();
    }
    auto buffer = std::make_unique<PackedBuffer>(size);
    ggml_backend_buffer_i iface = {};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.init_tensor = init_tensor;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    iface.clear = clear;
    ggml_backend_buffer_t made = ggml_backend_buffer_init(type, iface, buffer.get(), size);
    buffer.release();
    return made;
  } catch (const std::bad_alloc &) {
    PackedCount::note_refusal(size);
    return nullptr;
  }
}

size_t get_alignment(ggml_backend_buffer_type_t /*type*/) {
  return kAlignment;
}

size_t get_alloc_size(ggml_backend_buffer_type_t /*type*/, const struct ggml_tensor *tensor) {
  const size_t stock = ggml_nbytes(tensor);  // ggml wants no less
  return can_pack(tensor) ? std::max(stock, packed_size(tensor)) : stock;
}

// -- ggml::cpu::extra_buffer_type ---------------------------------------------------------------------------------

class PackedBufferType final : public ggml::cpu::extra_buffer_type {
 public:
  bool supports_op(ggml_backend_dev_t /*device*/, const ggml_tensor *op) override {
    if (wants_stock() || !can_multiply(op)) {
      return false;
    }
    const ggml_backend_buffer_t x_buffer = op->src[1]->buffer;
    return x_buffer == nullptr || ggml_backend_buffer_is_host(x_buffer);
  }

  ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor * /*op*/) override { return rule_table(); }
};

}  // namespace

ggml_backend_buffer_type_t packed_buffer_type() {
  static ggml_backend_buffer_type type = {
      /*.iface =*/{get_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, nullptr},
      /*.device =*/ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
      /*.context =*/new PackedBufferType(),  // never destroyed: ggml may ask for it until the process is gone
  };
  return &type;
}

PackedBytes packed_bytes(ggml_backend_buffer_t buffer) {
  const bool is_ours = buffer != nullptr && buffer->iface.free_buffer == free_buffer;
  return is_ours ? contents(buffer)->bytes() : PackedBytes{};
}

PackedBytes all_packed_bytes() {
  return {total_packed, total_copied};
}

PackedCount::PackedCount() : outer_(current_count) {
  current_count = this;
}

PackedCount::~PackedCount() {
  current_count = outer_;
}

void PackedCount::note_refusal(uint64_t n_bytes) {
  if (current_count != nullptr) {
    current_count->refused_ = n_bytes;
  }
}

}  // namespace df2
