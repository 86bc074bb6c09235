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
#include "cpu_backend/rule_rowwise.h"
#include "cpu_backend/source_pages.h"
#include "cpu_backend/taps.h"
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

thread_local bool wants_stock = false;

// Never destroyed: ggml may ask for it until the process is gone.
std::array<MatmulTraits, DF2_QMM_N_TYPES> &all_traits() {
  static auto *traits = new std::array<MatmulTraits, DF2_QMM_N_TYPES>();
  return *traits;
}

AttentionTraits &attention_traits() {
  static auto *traits = new AttentionTraits();
  return *traits;
}

RowwiseTraits &rowwise_traits() {
  static auto *traits = new RowwiseTraits();
  return *traits;
}

// Whether there are kernels at all. Before and without them, ggml computes everything.
std::atomic<bool> computes_rowwise{false};

// Buffers of models with kernels off. Every thread of every graph reads it, so a changed list replaces the old one,
// which is never freed.
using Buffers = std::vector<ggml_backend_buffer_t>;
std::atomic<const Buffers *> stock_buffers{nullptr};
std::mutex stock_buffers_mutex;

bool is_stock(ggml_backend_buffer_t buffer) {
  const Buffers *buffers = stock_buffers.load(std::memory_order_acquire);
  return buffers != nullptr && std::find(buffers->begin(), buffers->end(), buffer) != buffers->end();
}

// Calls change(list) on a copy of the list.
template <typename Change>
void change_stock_buffers(const Change &change) {
  const std::lock_guard<std::mutex> lock(stock_buffers_mutex);
  const Buffers *current = stock_buffers.load(std::memory_order_relaxed);
  auto next = current != nullptr ? std::make_unique<Buffers>(*current) : std::make_unique<Buffers>();
  change(*next);
  stock_buffers.store(next->empty() ? nullptr : next.release(), std::memory_order_release);
}

std::atomic<uint64_t> total_packed{0};
std::atomic<uint64_t> total_copied{0};

// Null for types without a kernel.
MatmulTraits *traits_of(ggml_type type) {
  static const auto by_type = [] {
    std::array<MatmulTraits *, GGML_TYPE_COUNT> found = {};
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
      const char *name = ggml_type_name(static_cast<ggml_type>(i));
      const df2_qmm_type known = name != nullptr ? df2_qmm_type_of_name(name) : DF2_QMM_N_TYPES;
      found[static_cast<size_t>(i)] = known != DF2_QMM_N_TYPES ? &all_traits()[known] : nullptr;
    }
    return found;
  }();
  MatmulTraits *traits = by_type[type];
  return traits != nullptr && traits->kernel() != nullptr ? traits : nullptr;
}

bool is_packed(const ggml_tensor *tensor) {
  return tensor != nullptr && tensor->buffer != nullptr && tensor->buffer->buft == packed_buffer_type();
}

// Nodes that name data and compute nothing.
bool is_view(const ggml_tensor *node) {
  return node->op == GGML_OP_VIEW || node->op == GGML_OP_RESHAPE || node->op == GGML_OP_PERMUTE ||
         node->op == GGML_OP_TRANSPOSE;
}

// llama.cpp gives the head of a model with tied embeddings the name of the embeddings, which it also keeps as they are.
bool is_copy(const ggml_tensor *tensor) {
  return std::strcmp(tensor->name, "token_embd.weight") == 0;
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
    const int32_t n_helpers = is_big ? std::min(physical_cores(), kMaxPackingThreads) - 1 : 0;
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

// Where the rows of packed weights are, in a buffer of ours.
struct PackedMatrices {
  explicit PackedMatrices(const ggml_tensor *weights)
      : type(traits_of(weights->type)->kernel()->type),
        n_in(weights->ne[0]),
        n_out(weights->ne[1]),
        n_tiles(df2_qmm_n_tiles(n_out)),
        row_bytes(df2_qmm_row_bytes(type, n_in)),
        tile_bytes(df2_qmm_tile_bytes(type, n_in)),
        tiles(static_cast<uint8_t *>(weights->data)) {}

  // The tile of one matrix.
  uint8_t *matrix(int64_t index) const { return tiles + static_cast<size_t>(index * n_tiles) * tile_bytes; }

  // One row, counted through all matrices.
  void unpack(uint8_t *row, int64_t index) const {
    const int64_t output = index % n_out;
    const uint8_t *tile = matrix(index / n_out) + static_cast<size_t>(output / DF2_QMM_TILE) * tile_bytes;
    df2_qmm_unpack_row(row, type, tile, n_in, output % DF2_QMM_TILE);
  }

  df2_qmm_type type;
  int64_t n_in;
  int64_t n_out;
  int64_t n_tiles;
  size_t row_bytes;
  size_t tile_bytes;
  uint8_t *tiles;
};

thread_local PackedCount *current_count = nullptr;

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
    const auto row_bytes = static_cast<int64_t>(matrices.row_bytes);
    const auto begin = static_cast<int64_t>(offset);
    const auto end = static_cast<int64_t>(offset + size);
    const int64_t first = (begin + row_bytes - 1) / row_bytes;
    const int64_t last = end / row_bytes;
    const auto copy_part = [&](int64_t row) {
      std::vector<uint8_t> whole(matrices.row_bytes);
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
    const size_t matrix_bytes = static_cast<size_t>(matrices.n_out) * matrices.row_bytes;
    const auto *weights = static_cast<const uint8_t *>(data);
    for_each_index(matrices.n_tiles * tensor->ne[2], ggml_nbytes(tensor) >= kBig, [&](int64_t i) {
      const int64_t matrix = i / matrices.n_tiles;
      df2_qmm_pack_tile(matrices.matrix(matrix), matrices.type, weights + static_cast<size_t>(matrix) * matrix_bytes,
                        matrices.n_out, matrices.n_in, i % matrices.n_tiles);
    });
    count(traits_of(tensor->type)->packed_bytes(tensor), is_copy(tensor));
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
    return GGML_STATUS_SUCCESS;  // whoever computes with it is told in get_tensor_traits
  }
  const MatmulTraits *traits = traits_of(tensor->type);
  return traits != nullptr && traits->takes(tensor) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data, size_t offset,
                size_t size) {
  contents(buffer)->set(tensor, data, offset, size);
}

void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data, size_t offset,
                size_t size) {
  const ggml_tensor *weights = tensor->view_src != nullptr ? tensor->view_src : tensor;
  contents(buffer)->get(weights, static_cast<uint8_t *>(data), offset + tensor->view_offs, size);
}

void clear(ggml_backend_buffer_t buffer, uint8_t value) {
  std::memset(contents(buffer)->base(), value, buffer->size);
}

// -- ggml_backend_buffer_type_i -----------------------------------------------------------------------------------

const char *get_name(ggml_backend_buffer_type_t /*type*/) {
  return kName;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  try {
    auto buffer = std::make_unique<PackedBuffer>(size);
    ggml_backend_buffer_i iface = {};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.init_tensor = init_tensor;
    iface.set_tensor = set_tensor;
    iface.get_tensor = get_tensor;
    iface.clear = clear;
    return ggml_backend_buffer_init(type, iface, buffer.release(), size);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

size_t get_alignment(ggml_backend_buffer_type_t /*type*/) {
  return kAlignment;
}

size_t get_alloc_size(ggml_backend_buffer_type_t /*type*/, const struct ggml_tensor *tensor) {
  const MatmulTraits *traits = traits_of(tensor->type);
  const size_t stock = ggml_nbytes(tensor);  // ggml wants no less
  return traits != nullptr && traits->takes(tensor) ? std::max(stock, traits->packed_bytes(tensor)) : stock;
}

// -- ggml::cpu::extra_buffer_type ---------------------------------------------------------------------------------

class PackedWeights final : public ggml::cpu::extra_buffer_type {
 public:
  bool supports_op(ggml_backend_dev_t /*device*/, const ggml_tensor *op) override {
    if (wants_stock || (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID)) {
      return false;
    }
    const ggml_backend_buffer_t x_buffer = op->src[1]->buffer;
    if (x_buffer != nullptr && !ggml_backend_buffer_is_host(x_buffer)) {
      return false;
    }
    const MatmulTraits *traits = traits_of(op->src[0]->type);
    return traits != nullptr && traits->supports(op);
  }

  ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor *op) override {
    const ggml_tensor *weights = op->src[0];
    if (!is_packed(weights)) {
      return traits_without_weights(op);
    }
    const bool is_matmul = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID;
    MatmulTraits *traits = traits_of(weights->type);
    if (is_matmul && traits->supports(op)) {
      return traits;
    }
    if (is_view(op)) {
      return nullptr;
    }
    // ggml itself would take the packed bytes for plain weights
    GGML_ABORT("dflash2: %s of the packed weights %s is not supported; load the model with kernels off",
               ggml_op_name(op->op), weights->name);
  }

 private:
  // Of nodes that are ours whatever buffers their operands are in.
  static ggml::cpu::tensor_traits *traits_without_weights(const ggml_tensor *op) {
    if (op->op == GGML_OP_ADD) {
      return traits_of_marked(op);
    }
    if (op->op == GGML_OP_FLASH_ATTN_EXT) {
      AttentionTraits &traits = attention_traits();
      return traits.supports(op) && !is_stock(op->src[1]->buffer) ? &traits : nullptr;
    }
    if (op->op == GGML_OP_MUL_MAT && computes_rowwise) {
      return rowwise_traits().supports(op) && !is_stock(op->src[0]->buffer) ? &rowwise_traits() : nullptr;
    }
    return nullptr;
  }
};

}  // namespace

ggml_backend_buffer_type_t packed_buffer_type() {
  static ggml_backend_buffer_type type = {
      /*.iface =*/{get_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, nullptr},
      /*.device =*/ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
      /*.context =*/new PackedWeights(),  // never destroyed, as the traits
  };
  return &type;
}

void set_kernels(const KernelTable &table) {
  for (size_t type = 0; type < table.matmul.size(); ++type) {
    all_traits()[type].set_kernel(table.matmul[type]);
  }
  attention_traits().set_kernel(table.attention);
  computes_rowwise = table.attention != nullptr;
}

StockBuffers::StockBuffers(std::vector<ggml_backend_buffer_t> buffers) : buffers_(std::move(buffers)) {
  change_stock_buffers([&](Buffers &list) { list.insert(list.end(), buffers_.begin(), buffers_.end()); });
}

StockBuffers::~StockBuffers() {
  change_stock_buffers([&](Buffers &list) {
    for (const ggml_backend_buffer_t buffer : buffers_) {
      list.erase(std::find(list.begin(), list.end(), buffer));
    }
  });
}

StockWeights::StockWeights(bool enabled) : before_(wants_stock) {
  wants_stock = wants_stock || enabled;
}

StockWeights::~StockWeights() {
  wants_stock = before_;
}

PackedBytes packed_bytes(ggml_backend_buffer_t buffer) {
  const bool is_ours = buffer != nullptr && buffer->buft == packed_buffer_type() && buffer->context != nullptr;
  return is_ours ? contents(buffer)->bytes() : PackedBytes{};
}

bool can_compute_packed(ggml_cgraph *graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor *node = ggml_graph_node(graph, i);
    for (int j = 0; j < GGML_MAX_SRC; ++j) {
      const ggml_tensor *source = node->src[j];
      const bool is_affected = source != nullptr && is_packed(source->view_src != nullptr ? source->view_src : source);
      if (is_affected && !is_view(node) && (j != 0 || !traits_of(source->type)->supports(node))) {
        return false;
      }
    }
  }
  return true;
}

PackedCount::PackedCount() : outer_(current_count) {
  current_count = this;
}

PackedCount::~PackedCount() {
  current_count = outer_;
}

PackedBytes all_packed_bytes() {
  return {total_packed, total_copied};
}

}  // namespace df2
