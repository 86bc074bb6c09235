// How exact flash attention is: this library's and llama.cpp's own, in the same graph with the same inputs, against
// double precision.
//
// test_attention_error [--quick | --table]: checks that this library's error is no larger than llama.cpp's (--quick:
// without the longest caches, for sanitizers), or prints the table of docs/performance.md.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/stock.h"
#include "ggml_nodes.h"
#include "ops/attention/attention.h"
#include "ops/common/cpu.h"

namespace {

constexpr uint16_t kMasked = 0xfc00;  // minus infinity
constexpr int64_t kWindow = 100;
constexpr int64_t kChunk = 100;
constexpr float kMaxBias = 8.0f;
constexpr float kSoftcap = 50.0f;
// The scores' standard deviation: of 2048 keys, about 40 share nearly all of the weight.
constexpr float kSpread = 2.0f;
// What keys and values may have in common, in units of their standard deviations.
constexpr float kKeyOffset = 4.0f;
constexpr float kValueOffset = 8.0f;
constexpr int64_t kLong = 2048;
// llama.cpp takes a tile of so many queries through float32, where there are as many and keys and values are f16.
constexpr int64_t kStockTile = 64;
// So many scores of a problem, and so many rows at least, are computed in double precision.
constexpr int64_t kExactScores = 4096;
constexpr int64_t kExactRows = 4;
// No error of ours is larger; twice the largest that was seen.
constexpr double kLargestError = 2e-6;

// What a problem has beside types and sizes.
enum class Kind {
  kCausal,
  kUnmasked,
  kSoftcap,
  kAlibi,
  kSinks,
  kWindow,
  kChunks,       // every third chunk of keys is masked, other ones for each query
  kValueOffset,  // values have something large in common: half precision has few digits left for the rest
  kKeyOffset,    // keys have something large in common, which makes scores large and cancels in the softmax
  kCount
};

const char *kind_name(Kind kind) {
  static const char *const names[] = {"causal", "unmasked", "soft cap",     "ALiBi",     "sinks",
                                      "window", "chunks",   "value offset", "key offset"};
  return names[static_cast<size_t>(kind)];
}

struct Types {
  ggml_type keys, values;
};
constexpr Types kTypes[] = {{GGML_TYPE_F32, GGML_TYPE_F32},       {GGML_TYPE_F16, GGML_TYPE_F16},
                            {GGML_TYPE_BF16, GGML_TYPE_BF16},     {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0},
                            {GGML_TYPE_Q4_0, GGML_TYPE_Q4_0},     {GGML_TYPE_Q4_1, GGML_TYPE_Q4_1},
                            {GGML_TYPE_Q5_0, GGML_TYPE_Q5_0},     {GGML_TYPE_Q5_1, GGML_TYPE_Q5_1},
                            {GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_NL}, {GGML_TYPE_F16, GGML_TYPE_Q8_0}};

struct Sizes {
  int64_t key, value;
};
constexpr Sizes kTableSizes[] = {{64, 64}, {80, 80}, {96, 96}, {128, 128}, {192, 128}, {256, 256}};
constexpr Sizes kSizes[] = {{64, 64},   {80, 80},   {96, 96},  {128, 128}, {192, 128}, {256, 256},
                            {120, 120}, {100, 100}, {20, 100}, {8, 8},     {33, 7}};

struct Shape {
  Types types;
  Sizes sizes;
  int64_t n_queries;
  int64_t n_keys;
  int64_t n_kv_heads;
  int64_t n_shared;  // heads of queries per K/V head
  Kind kind;
};

std::string describe(const Shape &shape) {
  char text[200];
  std::snprintf(text, sizeof(text), "keys %s x %d, values %s x %d, %d queries, %d keys, %d x %d heads, %s",
                ggml_type_name(shape.types.keys), static_cast<int>(shape.sizes.key), ggml_type_name(shape.types.values),
                static_cast<int>(shape.sizes.value), static_cast<int>(shape.n_queries), static_cast<int>(shape.n_keys),
                static_cast<int>(shape.n_kv_heads), static_cast<int>(shape.n_shared), kind_name(shape.kind));
  return text;
}

bool is_possible(const Types &types, const Sizes &sizes) {
  return sizes.key % ggml_blck_size(types.keys) == 0 && sizes.value % ggml_blck_size(types.values) == 0;
}

// Part of one long list of numbers with a distribution near the normal one.
std::vector<float> normal(size_t n, size_t part) {
  constexpr size_t kLength = 1000003;
  constexpr size_t kSummands = 4;
  static const std::vector<float> list = [] {
    const std::vector<float> uniform = noise(kSummands * kLength, 1);
    std::vector<float> sums(kLength);
    for (size_t i = 0; i < uniform.size(); ++i) {
      sums[i / kSummands] += uniform[i] * std::sqrt(3.0f / kSummands);
    }
    return sums;
  }();
  std::vector<float> taken;
  for (size_t at = part * 300007 % kLength; taken.size() < n; at = 0) {
    const size_t count = std::min(n - taken.size(), kLength - at);
    taken.insert(taken.end(), list.begin() + static_cast<ptrdiff_t>(at),
                 list.begin() + static_cast<ptrdiff_t>(at + count));
  }
  return taken;
}

std::vector<uint8_t> converted(ggml_type type, const std::vector<float> &values, int64_t size) {
  const int64_t n_vectors = static_cast<int64_t>(values.size()) / size;
  std::vector<uint8_t> data(ggml_row_size(type, size) * static_cast<size_t>(n_vectors));
  ggml_quantize_chunk(type, values.data(), data.data(), 0, n_vectors, size, nullptr);
  return data;
}

df2_attention_type kernel_type(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F16:
      return DF2_ATTENTION_F16;
    case GGML_TYPE_BF16:
      return DF2_ATTENTION_BF16;
    case GGML_TYPE_Q8_0:
      return DF2_ATTENTION_Q8_0;
    case GGML_TYPE_Q4_0:
      return DF2_ATTENTION_Q4_0;
    case GGML_TYPE_Q4_1:
      return DF2_ATTENTION_Q4_1;
    case GGML_TYPE_Q5_0:
      return DF2_ATTENTION_Q5_0;
    case GGML_TYPE_Q5_1:
      return DF2_ATTENTION_Q5_1;
    case GGML_TYPE_IQ4_NL:
      return DF2_ATTENTION_IQ4_NL;
    default:
      return DF2_ATTENTION_F32;
  }
}

// Keys or values as llama.cpp has them: [key][head][size].
struct Cache {
  Cache(ggml_type type_, int64_t size_, const Shape &shape, const std::vector<float> &elements)
      : type(type_),
        size(size_),
        stride_bytes(ggml_row_size(type_, size_) * static_cast<size_t>(shape.n_kv_heads)),
        data(converted(type_, elements, size_)),
        weights(type_, size_, shape.n_kv_heads, shape.n_keys, ggml_backend_cpu_buffer_type(), data) {}

  df2_attention_cache head(int64_t i) const {
    return {kernel_type(type), static_cast<int32_t>(size),
            data.data() + static_cast<size_t>(i) * ggml_row_size(type, size), stride_bytes};
  }

  ggml_type type;
  int64_t size;
  size_t stride_bytes;
  std::vector<uint8_t> data;
  Weights weights;
};

// -- One FLASH_ATTN_EXT node ------------------------------------------------------------------------------------------

class Problem {
 public:
  Problem(const Shape &shape, size_t seed)
      : shape_(shape),
        n_heads_(shape.n_kv_heads * shape.n_shared),
        keys_(shape.types.keys, shape.sizes.key, shape, make_keys(shape, 5 * seed)),
        values_(shape.types.values, shape.sizes.value, shape, make_values(shape, 5 * seed + 1)),
        queries_(normal(static_cast<size_t>(shape.sizes.key * n_heads_ * shape.n_queries), 5 * seed + 2)) {
    if (shape.kind != Kind::kUnmasked) {
      make_mask();
    }
    if (shape.kind == Kind::kSinks) {
      sinks_ = normal(static_cast<size_t>(n_heads_), 5 * seed + 3);
      for (float &sink : sinks_) {
        sink = kSpread * (sink + 2.0f);  // as large as the largest scores
      }
    }
  }

  // [query][head][value size], by this library's kernels if they are registered.
  std::vector<float> result() const {
    // llama.cpp shares out the keys of a single query
    return result(shape_.n_queries == 1 && shape_.n_keys == kLong ? 2 : 1);
  }

  std::vector<float> result(int n_threads) const {
    return compute([&](ggml_context *context) { return build(context); }, [&](ggml_tensor *y) { fill(y); }, n_threads);
  }

  std::vector<float> stock_result() const {
    const df2::StockScope stock(true);
    return result();
  }

  // The root mean square error of a result, relative to the exact result's.
  struct Errors {
    double ours, stock;
  };
  Errors errors(int64_t max_rows) const {
    const std::vector<float> ours = result();
    const std::vector<float> stock = stock_result();
    const int64_t n_rows = n_heads_ * shape_.n_queries;
    const int64_t n = std::min(n_rows, max_rows);
    Errors sums = {};
    double norm = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = i * n_rows / n;
      const std::vector<double> exact = exact_row(row);
      for (size_t d = 0; d < exact.size(); ++d) {
        const size_t at = static_cast<size_t>(row) * exact.size() + d;
        norm += std::pow(exact[d], 2);
        sums.ours += std::pow(static_cast<double>(ours[at]) - exact[d], 2);
        sums.stock += std::pow(static_cast<double>(stock[at]) - exact[d], 2);
      }
    }
    norm = std::max(norm, DBL_MIN);  // zero if no row sees a key: then every result should be
    return {std::sqrt(sums.ours / norm), std::sqrt(sums.stock / norm)};
  }

 private:
  static std::vector<float> make_keys(const Shape &shape, size_t part) {
    const auto size = static_cast<size_t>(shape.sizes.key);
    std::vector<float> keys = normal(size * static_cast<size_t>(shape.n_kv_heads * shape.n_keys), part);
    const std::vector<float> common = normal(size, part + 4);
    const float offset = shape.kind == Kind::kKeyOffset ? kKeyOffset : 0.0f;
    for (size_t i = 0; i < keys.size(); ++i) {
      keys[i] = kSpread * (keys[i] + offset * common[i % size]);
    }
    return keys;
  }

  static std::vector<float> make_values(const Shape &shape, size_t part) {
    std::vector<float> values = normal(static_cast<size_t>(shape.sizes.value * shape.n_kv_heads * shape.n_keys), part);
    for (float &value : values) {
      value += shape.kind == Kind::kValueOffset ? kValueOffset : 0.0f;
    }
    return values;
  }

  bool is_seen(int64_t query, int64_t key, int64_t distance) const {
    switch (shape_.kind) {
      case Kind::kWindow:
        return distance >= 0 && distance < kWindow;
      case Kind::kChunks:
        return (key / kChunk + query) % 3 != 0;
      default:
        return distance >= 0;
    }
  }

  void make_mask() {
    for (int64_t query = 0; query < shape_.n_queries; ++query) {
      for (int64_t key = 0; key < shape_.n_keys; ++key) {
        const int64_t distance = shape_.n_keys - shape_.n_queries + query - key;
        const float bias = shape_.kind == Kind::kAlibi ? -static_cast<float>(distance) : 0.0f;
        mask_.push_back(is_seen(query, key, distance) ? ggml_fp32_to_fp16(bias) : kMasked);
      }
    }
  }

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.sizes.key)); }
  float softcap() const { return shape_.kind == Kind::kSoftcap ? kSoftcap : 0.0f; }
  float max_bias() const { return shape_.kind == Kind::kAlibi ? kMaxBias : 0.0f; }

  ggml_tensor *build(ggml_context *context) const {
    const auto by_head = [&](ggml_tensor *tensor) { return ggml_permute(context, tensor, 0, 2, 1, 3); };
    ggml_tensor *queries = ggml_new_tensor_3d(context, GGML_TYPE_F32, shape_.sizes.key, n_heads_, shape_.n_queries);
    ggml_tensor *mask = nullptr;
    if (!mask_.empty()) {
      mask = ggml_new_tensor_2d(context, GGML_TYPE_F16, shape_.n_keys, shape_.n_queries);
    }
    ggml_tensor *node = ggml_flash_attn_ext(context, by_head(queries), by_head(keys_.weights.tensor),
                                            by_head(values_.weights.tensor), mask, scale(), max_bias(), softcap());
    if (!sinks_.empty()) {
      ggml_flash_attn_ext_add_sinks(node, ggml_new_tensor_1d(context, GGML_TYPE_F32, n_heads_));
    }
    return node;
  }

  void fill(ggml_tensor *node) const {
    ggml_backend_tensor_set(node->src[0]->view_src, queries_.data(), 0, queries_.size() * sizeof(float));
    if (!mask_.empty()) {
      ggml_backend_tensor_set(node->src[3], mask_.data(), 0, mask_.size() * sizeof(uint16_t));
    }
    if (!sinks_.empty()) {
      ggml_backend_tensor_set(node->src[4], sinks_.data(), 0, sinks_.size() * sizeof(float));
    }
  }

  // The mask's factor: 2^(-b / n), 2^(-2 b / n) ... for the first n heads, n the largest power of two, and
  // 2^(-b / 2n), 2^(-3 b / 2n) ... for the others.
  float slope(int64_t head) const {
    int64_t n = 1;
    while (2 * n <= n_heads_) {
      n *= 2;
    }
    const double step = head < n ? static_cast<double>(head + 1) : static_cast<double>(head - n) + 0.5;
    return static_cast<float>(std::exp2(-static_cast<double>(max_bias()) * step / static_cast<double>(n)));
  }

  std::vector<double> exact_row(int64_t index) const {
    const int64_t query = index / n_heads_;
    const int64_t head = index % n_heads_;
    const df2_attention_params params = {scale(), softcap()};
    const df2_attention_row row = {queries_.data() + index * shape_.sizes.key,
                                   mask_.empty() ? nullptr : mask_.data() + query * shape_.n_keys, slope(head)};
    const df2_attention_cache keys = keys_.head(head / shape_.n_shared);
    const df2_attention_cache values = values_.head(head / shape_.n_shared);
    std::vector<double> out(static_cast<size_t>(shape_.sizes.value));
    df2_attention_ref_f64(out.data(), &params, &row, &keys, &values, shape_.n_keys,
                          sinks_.empty() ? nullptr : &sinks_[static_cast<size_t>(head)]);
    return out;
  }

  Shape shape_;
  int64_t n_heads_;
  Cache keys_;
  Cache values_;
  std::vector<float> queries_;  // [query][head][key size]
  std::vector<uint16_t> mask_;  // f16 [query][key]; empty: none
  std::vector<float> sinks_;    // empty: none
};

// -- The checks -------------------------------------------------------------------------------------------------------

// llama.cpp rounds queries to the type of the keys (f16, bf16, q8_0) and, if values are f16, sums too. Not in these:
bool is_stock_float32(const Shape &shape) {
  const Types &types = shape.types;
  return types.keys == types.values &&
         (types.keys == GGML_TYPE_F32 || (types.keys == GGML_TYPE_F16 && shape.n_queries >= kStockTile));
}

// How much larger than llama.cpp's our error may be in one problem where both compute in float32; nowhere else may it
// be larger at all. A problem of few rows is a matter of chance, and of the instruction set that llama.cpp was compiled
// for; so that much is one rounding of a score, or two for one or two rows, whose error is a weight's relative one:
// 2^-24 / sqrt(3) of it. Over all problems of a size or kind ours is the smaller one (check_mean).
double float32_rounding(const Shape &shape) {
  const double score = kSpread * (shape.kind == Kind::kKeyOffset ? std::hypot(1.0, kKeyOffset) : 1.0);
  const int64_t n_rows = shape.n_queries * shape.n_kv_heads * shape.n_shared;
  return FLT_EPSILON / 2.0 / std::sqrt(3.0) * score * (n_rows < kExactRows ? 2.0 : 1.0);
}

// Sums of squared errors.
struct Squares {
  double ours = 0.0, stock = 0.0;

  void add(const Problem::Errors &errors) {
    ours += std::pow(errors.ours, 2);
    stock += std::pow(errors.stock, 2);
  }
};

void check_mean(const Squares &squares, const std::string &what) {
  if (!(squares.ours <= squares.stock)) {
    std::fprintf(stderr, "%s: mean error %.3g times llama.cpp's\n", what.c_str(),
                 std::sqrt(squares.ours / squares.stock));
  }
  CHECK(squares.ours <= squares.stock);
}

struct Summary {
  int n_problems = 0;
  int n_float32 = 0;  // where both compute in float32, and ours has the larger error in n_larger of them
  int n_larger = 0;
  Problem::Errors largest = {};
  double largest_ratio = 0.0;
  std::map<int64_t, Squares> of_size;  // of the n_float32
  std::map<Kind, Squares> of_kind;
};

void check_problem(Summary *summary, const Shape &shape, size_t seed) {
  const Problem::Errors errors = Problem(shape, seed).errors(std::max(kExactRows, kExactScores / shape.n_keys));
  const double relative = is_stock_float32(shape) ? errors.stock + float32_rounding(shape) : errors.stock;
  const double allowed = std::min(relative, kLargestError);
  if (!(errors.ours <= allowed)) {
    std::fprintf(stderr, "%s: error %.3g, llama.cpp's %.3g\n", describe(shape).c_str(), errors.ours, errors.stock);
  }
  CHECK(errors.ours <= allowed);
  ++summary->n_problems;
  summary->largest.ours = std::max(summary->largest.ours, errors.ours);
  summary->largest.stock = std::max(summary->largest.stock, errors.stock);
  if (errors.stock > 0.0) {
    summary->largest_ratio = std::max(summary->largest_ratio, errors.ours / errors.stock);
  }
  if (is_stock_float32(shape)) {
    ++summary->n_float32;
    summary->n_larger += errors.ours > errors.stock ? 1 : 0;
    summary->of_size[shape.sizes.key].add(errors);
    summary->of_kind[shape.kind].add(errors);
  }
}

// Every combination of sizes, queries and keys; kinds and groups of heads take turns.
void check_types(const Types &types, bool is_quick) {
  static const int64_t shared[] = {1, 3, 4};
  constexpr auto kKinds = static_cast<size_t>(Kind::kCount);
  Summary summary;
  size_t turn = static_cast<size_t>(types.keys);
  for (const Sizes &sizes : kSizes) {
    for (const int64_t n_queries : {int64_t{1}, int64_t{2}, int64_t{8}, int64_t{33}, kStockTile}) {
      for (const int64_t n_keys : {int64_t{1}, int64_t{64}, int64_t{257}, kLong}) {
        ++turn;
        if (!is_possible(types, sizes) || (is_quick && n_keys == kLong)) {
          continue;
        }
        const int64_t n_shared = shared[(turn + turn / kKinds) % 3];
        const bool is_long = n_keys == kLong;
        for (size_t i = 0; i < (is_long ? 1u : 2u); ++i) {
          const auto kind = static_cast<Kind>((turn + 4 * i) % kKinds);
          check_problem(&summary, {types, sizes, n_queries, n_keys, is_long ? 1 : 2, n_shared, kind}, turn);
        }
      }
    }
  }
  const std::string types_name = std::string(ggml_type_name(types.keys)) + ", " + ggml_type_name(types.values);
  for (const auto &[size, squares] : summary.of_size) {
    check_mean(squares, types_name + ", keys of size " + std::to_string(size));
  }
  for (const auto &[kind, squares] : summary.of_kind) {
    check_mean(squares, types_name + ", " + kind_name(kind));
  }
  std::printf("keys %s, values %s: %d problems, largest error %.2g, llama.cpp's %.2g; largest ratio in one %.3f\n",
              ggml_type_name(types.keys), ggml_type_name(types.values), summary.n_problems, summary.largest.ours,
              summary.largest.stock, summary.largest_ratio);
  if (summary.n_float32 > 0) {
    std::printf("  both in float32: %d, of which %d with a larger error than llama.cpp's\n", summary.n_float32,
                summary.n_larger);
  }
}

// Whatever the number of threads, and whether they share out groups of rows or spans of keys.
void check_threads(const Types &types, const Sizes &sizes) {
  for (const int64_t n_queries : {int64_t{1}, int64_t{33}}) {
    const Problem problem({types, sizes, n_queries, 700, 3, 4, Kind::kCausal}, 2);
    const std::vector<float> one = problem.result(1);
    CHECK(same_bits(problem.result(2), one));
    CHECK(same_bits(problem.result(3), one));
  }
}

// Registers the kernels, and checks that what follows compares what it says: before, and in exempt buffers, llama.cpp
// computes; else, the kernels do.
void register_and_check() {
  const Problem problem({{GGML_TYPE_F16, GGML_TYPE_F16}, {64, 64}, 8, 257, 2, 3, Kind::kCausal}, 0);
  const std::vector<float> before = problem.result();
  const df2::KernelTable table = df2::choose_kernels(df2_cpu_features(), true);
  const df2::Registration registration = df2::register_kernels(table, table.attention->isa);
  CHECK(registration.status.state == DF2_KERNELS_ACTIVE);
  CHECK(same_bits(problem.stock_result(), before));
  CHECK(!same_bits(problem.result(), before));
}

// -- The table of docs/performance.md ---------------------------------------------------------------------------------

std::string in_millionths(double error) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", error < 1e-5 ? 1 : 0, 1e6 * error);
  return text;
}

struct TableRow {
  Types types;
  int64_t n_queries;
  Kind kind;
};

void print_table() {
  std::vector<TableRow> rows;
  for (const Types &types : kTypes) {
    rows.push_back({types, 8, Kind::kCausal});
  }
  rows.push_back({{GGML_TYPE_F16, GGML_TYPE_F16}, 8, Kind::kValueOffset});
  rows.push_back({{GGML_TYPE_F32, GGML_TYPE_F32}, 8, Kind::kSoftcap});
  rows.push_back({{GGML_TYPE_F16, GGML_TYPE_F16}, kStockTile, Kind::kCausal});
  rows.push_back({{GGML_TYPE_F16, GGML_TYPE_F16}, kStockTile, Kind::kSoftcap});
  std::printf("| keys, values | queries | mask and scores | 64 | 80 | 96 | 128 | 192, 128 | 256 |\n");
  std::printf("|---|--:|---|--:|--:|--:|--:|--:|--:|\n");
  for (const TableRow &row : rows) {
    std::printf("| %s, %s | %d | %s |", ggml_type_name(row.types.keys), ggml_type_name(row.types.values),
                static_cast<int>(row.n_queries), kind_name(row.kind));
    for (const Sizes &sizes : kTableSizes) {
      if (!is_possible(row.types, sizes)) {
        std::printf(" - |");
        continue;
      }
      const Shape shape = {row.types, sizes, row.n_queries, kLong, 2, 4, row.kind};
      const Problem::Errors errors = Problem(shape, 1).errors(128);
      std::printf(" %s / %s |", in_millionths(errors.ours).c_str(), in_millionths(errors.stock).c_str());
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc > 2 || (mode != "" && mode != "--quick" && mode != "--table")) {
    std::fprintf(stderr, "usage: test_attention_error [--quick | --table]\n");
    return 2;
  }
  register_and_check();
  if (mode == "--table") {
    print_table();
    return report("attention error");
  }
  for (const Types &types : kTypes) {
    for (const Sizes &sizes : kSizes) {
      if (is_possible(types, sizes)) {
        check_threads(types, sizes);
      }
    }
    check_types(types, mode == "--quick");
  }
  return report("attention error");
}
