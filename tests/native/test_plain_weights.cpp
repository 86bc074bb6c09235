// Products with weights as ggml stores them: every row as alone, for any shape; and what is kept from other buffer
// types that would repack it.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/plain_weights.h"
#include "cpu_backend/stock.h"
#include "dflash2.h"
#include "ggml_nodes.h"

namespace {

// Wants the weights of every product, as a type that repacks them would, and computes nothing.
class Greedy final : public ggml::cpu::extra_buffer_type {
 public:
  bool supports_op(ggml_backend_dev_t /*device*/, const ggml_tensor *op) override {
    return (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID) && op->src[0]->buffer->buft == type();
  }
  ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor * /*op*/) override { return nullptr; }

  static ggml_backend_buffer_type_t type() {
    static ggml_backend_buffer_type made = *ggml_backend_cpu_buffer_type();
    made.context = &instance();
    return &made;
  }

  static Greedy &instance() {
    static Greedy greedy;
    return greedy;
  }
};

// While one exists, ggml knows that type as well.
struct WithGreedy {
  WithGreedy() { ggml_backend_cpu_get_extra_buffer_types().push_back(Greedy::type()); }
  ~WithGreedy() { ggml_backend_cpu_get_extra_buffer_types().pop_back(); }
};

// What a loader asks: whether a buffer type takes the weights of a node.
bool is_taken(ggml_backend_buffer_type_t buffer_type, ggml_type type, int64_t n_in, int64_t n_matrices, ggml_op op) {
  const ggml_context_ptr owner = make_context();
  ggml_context *context = owner.get();
  ggml_tensor *weights = ggml_new_tensor_3d(context, type, n_in, 32, n_matrices);
  ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, n_in, 8, n_matrices);
  ggml_tensor *node = nullptr;
  if (op == GGML_OP_MUL_MAT) {
    node = ggml_mul_mat(context, weights, rows);
  } else if (op == GGML_OP_MUL_MAT_ID) {
    node = ggml_mul_mat_id(context, weights, rows, ggml_new_tensor_2d(context, GGML_TYPE_I32, 8, n_matrices));
  } else {
    node = ggml_add(context, ggml_new_tensor_3d(context, GGML_TYPE_F32, n_in, 32, n_matrices), weights);
  }
  const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(buffer_type, 0));
  weights->buffer = nothing.get();
  const bool is_taken = ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), node);
  CHECK(weights->buffer == nothing.get());
  return is_taken;
}

bool is_held(ggml_type type, int64_t n_in, int64_t n_matrices, ggml_op op) {
  return is_taken(df2::plain_buffer_type(), type, n_in, n_matrices, op);
}

// Exactly what ggml's own repacking would take on this CPU.
void test_real_repacking() {
  for (const ggml_backend_buffer_type_t other : ggml_backend_cpu_get_extra_buffer_types()) {
    if (std::string(ggml_backend_buft_name(other)) != "CPU_REPACK") {
      continue;
    }
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q2_K, GGML_TYPE_Q1_0, GGML_TYPE_IQ3_S}) {
      for (const ggml_op op : {GGML_OP_MUL_MAT, GGML_OP_MUL_MAT_ID}) {
        const int64_t n_matrices = op == GGML_OP_MUL_MAT ? 1 : 3;
        CHECK(is_held(type, 256, n_matrices, op) == is_taken(other, type, 256, n_matrices, op));
      }
    }
  }
}

void test_what_is_held() {
  CHECK(!is_held(GGML_TYPE_IQ3_S, 256, 1, GGML_OP_MUL_MAT));  // no type repacks it: it stays mapped
  const WithGreedy greedy;
  for (const ggml_type type : {GGML_TYPE_IQ3_S, GGML_TYPE_Q2_K, GGML_TYPE_F16}) {
    CHECK(is_held(type, 256, 1, GGML_OP_MUL_MAT));
    CHECK(is_held(type, 256, 3, GGML_OP_MUL_MAT));
    CHECK(is_held(type, 256, 3, GGML_OP_MUL_MAT_ID));
  }
  CHECK(is_held(GGML_TYPE_F32, 9, 1, GGML_OP_MUL_MAT));
  CHECK(!is_held(GGML_TYPE_F32, 256, 1, GGML_OP_ADD));
  const df2::StockScope stock(true);
  CHECK(!is_held(GGML_TYPE_IQ3_S, 256, 1, GGML_OP_MUL_MAT));
}

// Held weights are written and read as any, in parts and through views, and are what ggml itself computes with where
// rules stand aside.
void test_held_weights() {
  constexpr ggml_type type = GGML_TYPE_Q2_K;
  const std::vector<uint8_t> data = quantise(type, 256, 40, 1);
  const Weights held(type, 256, 40, 1, df2::plain_buffer_type(), quantise(type, 256, 40, 2));
  const Weights mapped(type, 256, 40, 1, ggml_backend_cpu_buffer_type(), data);
  const size_t row = held.tensor->nb[1];
  ggml_backend_tensor_set(held.tensor, data.data() + 100, 100, data.size() - 100);
  ggml_backend_tensor_set(held.tensor, data.data(), 0, 100);
  std::vector<uint8_t> read(data.size());
  ggml_backend_tensor_get(held.tensor, read.data(), 0, read.size());
  CHECK(read == data);
  const ggml_context_ptr context = make_context();
  ggml_tensor *upper = ggml_view_2d(context.get(), held.tensor, 256, 20, row, 20 * row);
  upper->buffer = held.tensor->buffer;
  std::vector<uint8_t> part(row);
  ggml_backend_tensor_get(upper, part.data(), row, row);
  CHECK(std::equal(part.begin(), part.end(), data.begin() + static_cast<int64_t>(21 * row)));

  const std::vector<float> x = noise(256 * 20, 3);
  CHECK(same_bits(multiply(held.tensor, x, 20, 2), multiply(mapped.tensor, x, 20, 1)));
  const auto look_up = [](ggml_tensor *weights) {
    return compute(
        [&](ggml_context *ctx) { return ggml_get_rows(ctx, weights, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 2)); },
        [](ggml_tensor *y) {
          const int32_t ids[] = {39, 7};
          ggml_backend_tensor_set(y->src[1], ids, 0, sizeof(ids));
        },
        1);
  };
  CHECK(same_bits(look_up(held.tensor), look_up(mapped.tensor)));
  const df2::StockScope stock(true);
  CHECK(same_bits(multiply(held.tensor, x, 20, 2), multiply(mapped.tensor, x, 20, 2)));
}

// What src1 is, in a product of weights [n_in, n_out, n2, n3].
struct Shape {
  ggml_type type;
  int64_t n_in, n_out, n2, n3;
  int64_t n_repeats2, n_repeats3;
  ggml_type x_type = GGML_TYPE_F32;
};

std::vector<float> slice(const std::vector<float> &values, int64_t size, int64_t index) {
  return {values.begin() + size * index, values.begin() + size * (index + 1)};
}

// Computes a product of all rows, or of one, each matrix of src1 taken from a longer one.
std::vector<float> product(const Shape &shape, const std::vector<uint8_t> &data, const std::vector<float> &x,
                           int64_t n_rows, int64_t first, int64_t n, int n_threads) {
  const int64_t n_x = shape.n2 * shape.n3 * shape.n_repeats2 * shape.n_repeats3;
  return compute(
      [&](ggml_context *context) {
        ggml_tensor *weights = ggml_new_tensor_4d(context, shape.type, shape.n_in, shape.n_out, shape.n2, shape.n3);
        ggml_tensor *all = ggml_new_tensor_4d(context, shape.x_type, shape.n_in, n_rows, shape.n2 * shape.n_repeats2,
                                              shape.n3 * shape.n_repeats3);
        ggml_tensor *rows = ggml_view_4d(context, all, shape.n_in, n, all->ne[2], all->ne[3], all->nb[1], all->nb[2],
                                         all->nb[3], static_cast<size_t>(first) * all->nb[1]);
        return ggml_mul_mat(context, weights, rows);
      },
      [&](ggml_tensor *y) {
        ggml_backend_tensor_set(y->src[0], data.data(), 0, data.size());
        ggml_tensor *all = y->src[1]->view_src;
        std::vector<uint8_t> values(ggml_nbytes(all));
        if (shape.x_type == GGML_TYPE_F32) {
          std::memcpy(values.data(), x.data(), values.size());
        } else {
          ggml_get_type_traits_cpu(shape.x_type)->from_float(x.data(), values.data(), n_x * n_rows * shape.n_in);
        }
        ggml_backend_tensor_set(all, values.data(), 0, values.size());
      },
      n_threads);
}

void test_rows(const Shape &shape) {
  constexpr int64_t n_rows = 70;
  const int64_t n_matrices = shape.n2 * shape.n3;
  const int64_t n_x = n_matrices * shape.n_repeats2 * shape.n_repeats3;
  const std::vector<uint8_t> data = quantise(shape.type, shape.n_in, shape.n_out * n_matrices, 4);
  const std::vector<float> x = noise(static_cast<size_t>(shape.n_in * n_rows * n_x), 5);
  const std::vector<float> expected = product(shape, data, x, n_rows, 0, n_rows, 1);
  for (const int n_threads : {2, 3}) {
    CHECK(same_bits(product(shape, data, x, n_rows, 0, n_rows, n_threads), expected));
  }
  for (const int64_t n : {1, 9}) {
    const int64_t first = n_rows - n;
    const std::vector<float> few = product(shape, data, x, n_rows, first, n, 2);
    for (int64_t matrix = 0; matrix < n_x; ++matrix) {
      for (int64_t i = 0; i < n; ++i) {
        CHECK(same_bits(slice(few, shape.n_out, matrix * n + i),
                        slice(expected, shape.n_out, matrix * n_rows + first + i)));
      }
    }
  }
  // the right rows with the right matrices: ggml's own result, as near as its rounding lets it be
  const df2::StockScope stock(true);
  const std::vector<float> other = product(shape, data, x, n_rows, 0, n_rows, 1);
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < other.size(); ++i) {
    error += (static_cast<double>(other[i]) - expected[i]) * (static_cast<double>(other[i]) - expected[i]);
    norm += static_cast<double>(other[i]) * other[i];
  }
  CHECK(error <= 1e-4 * norm);
}

void test_row_shapes() {
  test_rows({GGML_TYPE_Q2_K, 512, 40, 1, 1, 1, 1});
  test_rows({GGML_TYPE_F16, 100, 37, 1, 1, 1, 1});
  test_rows({GGML_TYPE_BF16, 33, 5, 1, 1, 1, 1});
  test_rows({GGML_TYPE_F32, 7, 1, 1, 1, 1, 1});
  test_rows({GGML_TYPE_Q8_0, 96, 20, 3, 1, 1, 1});
  test_rows({GGML_TYPE_F16, 64, 50, 2, 3, 4, 2});  // as heads share keys
  test_rows({GGML_TYPE_F16, 64, 50, 2, 1, 2, 1, GGML_TYPE_F16});
}

// Types that take long to unpack: row by row for as many tokens as docs/identity.md says, then ggml's.
void test_limit() {
  constexpr int64_t n_out = 20;
  const std::vector<uint8_t> data = quantise(GGML_TYPE_IQ3_S, 256, n_out, 8);
  const Weights weights(GGML_TYPE_IQ3_S, 256, n_out, 1, ggml_backend_cpu_buffer_type(), data);
  const std::vector<float> x = noise(256 * 257, 9);
  const std::vector<float> most = {x.begin(), x.end() - 256};
  const std::vector<float> last = {x.end() - 2 * 256, x.end() - 256};
  CHECK(same_bits(slice(multiply(weights.tensor, most, 256, 2), n_out, 255), multiply(weights.tensor, last, 1, 1)));
  const std::vector<float> more = multiply(weights.tensor, x, 257, 2);
  const df2::StockScope stock(true);
  CHECK(same_bits(more, multiply(weights.tensor, x, 257, 2)));
}

// Every row of MUL_MAT_ID is what MUL_MAT with that expert gives.
void test_experts(ggml_type type, int64_t n_in, int64_t n_tokens, bool is_shared_input) {
  constexpr int64_t n_out = 37;
  constexpr int64_t n_experts = 5;
  constexpr int64_t n_used = 2;
  const std::vector<uint8_t> data = quantise(type, n_in, n_out * n_experts, 6);
  const Weights weights(type, n_in, n_out, n_experts, df2::plain_buffer_type(), data);
  const int64_t n_inputs = is_shared_input ? 1 : n_used;
  const std::vector<float> x = noise(static_cast<size_t>(n_in * n_inputs * n_tokens), 7);
  const auto expert_of = [&](int64_t i) { return i == 3 ? int64_t{-1} : i * i % n_experts; };
  std::vector<std::vector<float>> dense;
  for (int64_t expert = 0; expert < n_experts; ++expert) {
    const auto begin = data.begin() + static_cast<int64_t>(data.size()) / n_experts * expert;
    const Weights one(type, n_in, n_out, 1, df2::plain_buffer_type(),
                      {begin, begin + static_cast<int64_t>(data.size()) / n_experts});
    dense.push_back(multiply(one.tensor, x, n_inputs * n_tokens, 1));
  }
  for (int n_threads = 1; n_threads <= 3; ++n_threads) {
    const std::vector<float> y = compute(
        [&](ggml_context *context) {
          return ggml_mul_mat_id(context, weights.tensor,
                                 ggml_new_tensor_3d(context, GGML_TYPE_F32, n_in, n_inputs, n_tokens),
                                 ggml_new_tensor_2d(context, GGML_TYPE_I32, n_used, n_tokens));
        },
        [&](ggml_tensor *node) {
          ggml_backend_tensor_set(node->src[1], x.data(), 0, ggml_nbytes(node->src[1]));
          std::vector<int32_t> ids;
          for (int64_t i = 0; i < n_tokens * n_used; ++i) {
            ids.push_back(static_cast<int32_t>(expert_of(i)));
          }
          ggml_backend_tensor_set(node->src[2], ids.data(), 0, ids.size() * sizeof(int32_t));
        },
        n_threads);
    for (int64_t i = 0; i < n_tokens * n_used; ++i) {
      const int64_t input = is_shared_input ? i / n_used : i;
      const std::vector<float> expected = expert_of(i) < 0
                                              ? std::vector<float>(n_out, 0.0f)
                                              : slice(dense[static_cast<size_t>(expert_of(i))], n_out, input);
      CHECK(same_bits(slice(y, n_out, i), expected));
    }
  }
}

void test_expert_shapes() {
  for (const int64_t n_tokens : {1, 3, 80}) {
    test_experts(GGML_TYPE_Q2_K, 256, n_tokens, true);
    test_experts(GGML_TYPE_IQ3_S, 256, n_tokens, false);
    test_experts(GGML_TYPE_F16, 100, n_tokens, true);
    test_experts(GGML_TYPE_F32, 9, n_tokens, false);
  }
}

}  // namespace

int main() {
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  CHECK_STATUS(df2_kernels_info_get(&info), DF2_OK);
  if (info.state == DF2_KERNELS_UNSUPPORTED) {
    std::printf("plain weights: no kernels for this CPU\n");
    return report("plain weights");
  }
  CHECK(info.state == DF2_KERNELS_ACTIVE);
  test_real_repacking();
  test_what_is_held();
  test_held_weights();
  test_row_shapes();
  test_limit();
  test_expert_shapes();
  return report("plain weights");
}
