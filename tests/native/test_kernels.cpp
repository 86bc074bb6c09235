// Matrix products of ggml graphs with packed weights. What the kernels themselves compute is tested in ops/.
//
// Without arguments: everything in one process. "disabled" and "late": what cannot share one with it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/stock.h"
#include "dflash2.h"
#include "ggml_nodes.h"
#include "ops/common/cpu.h"
#include "tiny_drafter.h"

namespace {

std::vector<std::string> log_lines;

df2_kernels_info info() {
  df2_kernels_info found = {};
  found.struct_size = sizeof(found);
  CHECK_STATUS(df2_kernels_info_get(&found), DF2_OK);
  return found;
}

// A program's callback may ask at once what the line is about, and has its answer.
void keep_line(int32_t /*level*/, const char *message, void * /*payload*/) {
  log_lines.emplace_back(message);
  CHECK(info().state != DF2_KERNELS_UNKNOWN);
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
}

std::vector<float> rows_of(const std::vector<float> &values, int64_t row_size, int64_t first, int64_t n) {
  return {values.begin() + first * row_size, values.begin() + (first + n) * row_size};
}

bool is_float(ggml_type type) {
  return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// y against exact arithmetic on the same weights, where every activation may be off by half a step of its block's
// int8, and sums by float rounding.
void check_values(ggml_type type, const std::vector<uint8_t> &data, const std::vector<float> &x, int64_t n_in,
                  int64_t n_out, int64_t n_rows, const std::vector<float> &y) {
  std::vector<float> w(static_cast<size_t>(n_in * n_out));
  const ggml_type_traits *traits = ggml_get_type_traits(type);
  if (type == GGML_TYPE_F32) {
    std::memcpy(w.data(), data.data(), data.size());
  } else {
    traits->to_float(data.data(), w.data(), n_in * n_out);
  }
  int n_bad = 0;
  for (int64_t r = 0; r < n_rows; ++r) {
    std::vector<double> step(static_cast<size_t>(n_in / 32));
    for (int64_t i = 0; i < n_in; ++i) {
      double &s = step[static_cast<size_t>(i / 32)];
      s = std::max(s, std::fabs(static_cast<double>(x[static_cast<size_t>(r * n_in + i)])) / 127.0);
    }
    for (int64_t o = 0; o < n_out; ++o) {
      double sum = 0.0;
      double bound = 0.0;
      for (int64_t i = 0; i < n_in; ++i) {
        const double weight = w[static_cast<size_t>(o * n_in + i)];
        sum += weight * x[static_cast<size_t>(r * n_in + i)];
        const double rounding = is_float(type) ? 0.0 : 0.5001 * step[static_cast<size_t>(i / 32)];
        bound += std::fabs(weight) * (rounding + 1e-5);
      }
      n_bad += std::fabs(sum - y[static_cast<size_t>(r * n_out + o)]) <= bound ? 0 : 1;
    }
  }
  if (n_bad != 0) {
    std::fprintf(stderr, "%s [%d, %d] x %d rows: %d values are off\n", ggml_type_name(type), (int)n_in, (int)n_out,
                 (int)n_rows, n_bad);
  }
  CHECK(n_bad == 0);
}

void test_mul_mat(ggml_type type, int64_t n_in, int64_t n_out, const std::vector<int64_t> &row_counts) {
  const std::vector<uint8_t> data = quantise(type, n_in, n_out, 1);
  const Weights packed(type, n_in, n_out, 1, df2::packed_buffer_type(), data);
  const Weights stock(type, n_in, n_out, 1, ggml_backend_cpu_buffer_type(), data);
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  const std::vector<float> all_x = noise(static_cast<size_t>(n_in * most), 2);
  const std::vector<float> all_y = multiply(packed.tensor, all_x, most, 1);
  check_values(type, data, all_x, n_in, n_out, most, all_y);
  // ggml's own rounds activations too, some types' in blocks of 256
  const std::vector<float> expected = multiply(stock.tensor, all_x, most, 1);
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(expected[i]) - all_y[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  CHECK(error <= 3e-4 * norm);
  for (const int64_t n_rows : row_counts) {
    const std::vector<float> x = rows_of(all_x, n_in, 0, n_rows);
    for (int n_threads = 1; n_threads <= 4; ++n_threads) {
      CHECK(same_bits(multiply(packed.tensor, x, n_rows, n_threads), rows_of(all_y, n_out, 0, n_rows)));
    }
  }
}

void test_mul_mat_shapes() {
  for (const ggml_type type : kernel_types()) {
    for (const int64_t n_out : {1, 15, 16, 17, 33}) {
      test_mul_mat(type, 256, n_out, {1, 2, 16, 17});
    }
    test_mul_mat(type, 768, 100, {1, 5, 31, 33, 40});
  }
  std::vector<int64_t> all_counts;
  for (int64_t n = 1; n <= 40; ++n) {
    all_counts.push_back(n);
  }
  test_mul_mat(GGML_TYPE_Q4_0, 32, 48, all_counts);
  test_mul_mat(GGML_TYPE_Q4_0, 96, 1000, {1, 8, 300});  // runs of tiles, several batches each
  test_mul_mat(GGML_TYPE_Q8_0, 64, 16, {700});          // fewer tiles than threads: split by batches
}

// src1 with more dimensions, and with rows that are not back to back.
void test_strided_input() {
  constexpr int64_t n_in = 64;
  constexpr int64_t n_out = 20;
  const std::vector<uint8_t> data = quantise(GGML_TYPE_Q4_1, n_in, n_out, 3);
  const Weights packed(GGML_TYPE_Q4_1, n_in, n_out, 1, df2::packed_buffer_type(), data);
  const std::vector<float> x = noise(n_in * 3 * 5 * 2, 4);
  const std::vector<float> flat = multiply(packed.tensor, x, 3 * 5 * 2, 1);
  for (int n_threads = 1; n_threads <= 3; ++n_threads) {
    const auto fill = [&](ggml_tensor *y) {
      ggml_tensor *root = y->src[1]->view_src != nullptr ? y->src[1]->view_src : y->src[1];
      ggml_backend_tensor_set(root, x.data(), 0, x.size() * sizeof(float));
    };
    CHECK(same_bits(flat, compute(
                              [&](ggml_context *context) {
                                ggml_tensor *rows = ggml_new_tensor_4d(context, GGML_TYPE_F32, n_in, 3, 5, 2);
                                return ggml_mul_mat(context, packed.tensor, rows);
                              },
                              fill, n_threads)));
    const std::vector<float> permuted = compute(
        [&](ggml_context *context) {
          ggml_tensor *rows = ggml_new_tensor_4d(context, GGML_TYPE_F32, n_in, 3, 5, 2);
          return ggml_mul_mat(context, packed.tensor, ggml_permute(context, rows, 0, 2, 1, 3));
        },
        fill, n_threads);
    bool agrees = true;
    for (int64_t i = 0; i < 3 * 5 * 2; ++i) {
      const int64_t at = i % 3 * 5 + i / 3 % 5 + i / 15 * 15;  // [2][5][3] became [2][3][5]
      agrees = agrees && same_bits(rows_of(flat, n_out, i, 1), rows_of(permuted, n_out, at, 1));
    }
    CHECK(agrees);
  }
}

// Each row of MUL_MAT_ID is what MUL_MAT with that expert gives, whoever else is in the batch.
void test_experts(ggml_type type, int64_t n_tokens, bool is_shared_input, int64_t n_busy_experts) {
  constexpr int64_t n_in = 256;
  constexpr int64_t n_out = 37;
  constexpr int64_t n_experts = 6;
  constexpr int64_t n_used = 3;
  const std::vector<uint8_t> data = quantise(type, n_in, n_out * n_experts, 5);
  const Weights packed(type, n_in, n_out, n_experts, df2::packed_buffer_type(), data);
  const int64_t n_inputs = is_shared_input ? 1 : n_used;
  const std::vector<float> x = noise(static_cast<size_t>(n_in * n_inputs * n_tokens), 6);
  std::vector<std::vector<float>> dense;
  for (int64_t expert = 0; expert < n_experts; ++expert) {
    const size_t n_bytes = data.size() / n_experts;
    const auto begin = data.begin() + static_cast<int64_t>(n_bytes) * expert;
    const std::vector<uint8_t> part(begin, begin + static_cast<int64_t>(n_bytes));
    const Weights one(type, n_in, n_out, 1, df2::packed_buffer_type(), part);
    dense.push_back(multiply(one.tensor, x, n_inputs * n_tokens, 1));
  }
  const auto expert_of = [&](int64_t token, int64_t used) { return (token * 7 + used * 2) % n_busy_experts; };
  for (int n_threads = 1; n_threads <= 4; ++n_threads) {
    const std::vector<float> y = compute(
        [&](ggml_context *context) {
          ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, n_in, n_inputs, n_tokens);
          // the first n_used columns of a longer list, as a top-k gives them
          ggml_tensor *sorted = ggml_new_tensor_2d(context, GGML_TYPE_I32, n_experts, n_tokens);
          ggml_tensor *ids = ggml_view_2d(context, sorted, n_used, n_tokens, sorted->nb[1], 0);
          return ggml_mul_mat_id(context, packed.tensor, rows, ids);
        },
        [&](ggml_tensor *y_) {
          ggml_backend_tensor_set(y_->src[1], x.data(), 0, ggml_nbytes(y_->src[1]));
          std::vector<int32_t> ids(n_experts * static_cast<size_t>(n_tokens), -1000);
          for (int64_t i = 0; i < n_tokens * n_used; ++i) {
            ids[static_cast<size_t>(i / n_used * n_experts + i % n_used)] =
                static_cast<int32_t>(expert_of(i / n_used, i % n_used));
          }
          ggml_backend_tensor_set(y_->src[2]->view_src, ids.data(), 0, ids.size() * sizeof(int32_t));
        },
        n_threads);
    bool agrees = true;
    for (int64_t i = 0; i < n_tokens * n_used; ++i) {
      const int64_t input = is_shared_input ? i / n_used : i;
      const auto expert = static_cast<size_t>(expert_of(i / n_used, i % n_used));
      agrees = agrees && same_bits(rows_of(y, n_out, i, 1), rows_of(dense[expert], n_out, input, 1));
    }
    CHECK(agrees);
  }
}

void test_expert_shapes() {
  for (const int64_t n_tokens : {1, 2, 7, 40}) {
    test_experts(GGML_TYPE_Q4_K, n_tokens, true, 6);
    test_experts(GGML_TYPE_Q4_K, n_tokens, false, 6);
    test_experts(GGML_TYPE_MXFP4, n_tokens, false, 2);  // most experts unused
    test_experts(GGML_TYPE_F32, n_tokens, true, 1);
  }
}

void test_bad_expert_ids() {
  const std::vector<uint8_t> data = quantise(GGML_TYPE_Q8_0, 32, 8 * 2, 7);
  const Weights packed(GGML_TYPE_Q8_0, 32, 8, 2, df2::packed_buffer_type(), data);
  const std::vector<float> y = compute(
      [&](ggml_context *context) {
        ggml_tensor *rows = ggml_new_tensor_3d(context, GGML_TYPE_F32, 32, 1, 2);
        return ggml_mul_mat_id(context, packed.tensor, rows, ggml_new_tensor_2d(context, GGML_TYPE_I32, 2, 2));
      },
      [](ggml_tensor *y_) {
        const std::vector<float> x = noise(64, 8);
        ggml_backend_tensor_set(y_->src[1], x.data(), 0, ggml_nbytes(y_->src[1]));
        const int32_t ids[] = {1, 2, -1, INT32_MIN};
        ggml_backend_tensor_set(y_->src[2], ids, 0, sizeof(ids));
      },
      2);
  for (size_t i = 0; i < y.size(); ++i) {
    CHECK((i < 8) == (y[i] != 0.0f));
  }
}

// What the loader of a model asks, with a buffer that holds nothing.
bool is_taken(ggml_type type, int64_t n_in, int64_t n_matrices, ggml_op op, ggml_type x_type = GGML_TYPE_F32) {
  const ggml_context_ptr owner = make_context();
  ggml_context *context = owner.get();
  ggml_tensor *weights = ggml_new_tensor_3d(context, type, n_in, 32, n_matrices);
  ggml_tensor *node = nullptr;
  if (op == GGML_OP_MUL_MAT) {
    node = ggml_mul_mat(context, weights, ggml_new_tensor_3d(context, x_type, n_in, 8, n_matrices));
  } else if (op == GGML_OP_MUL_MAT_ID) {
    node = ggml_mul_mat_id(context, weights, ggml_new_tensor_3d(context, x_type, n_in, 1, 8),
                           ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, 8));
  } else {
    node = ggml_get_rows(context, weights, ggml_new_tensor_1d(context, GGML_TYPE_I32, 8));
  }
  const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(df2::packed_buffer_type(), 0));
  weights->buffer = nothing.get();
  return ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), node);
}

void test_what_is_taken() {
  for (const ggml_type type : kernel_types()) {
    CHECK(is_taken(type, 256, 1, GGML_OP_MUL_MAT));
    CHECK(is_taken(type, 512, 4, GGML_OP_MUL_MAT_ID));
    CHECK(!is_taken(type, 256, 1, GGML_OP_GET_ROWS));
    CHECK(!is_taken(type, 256, 2, GGML_OP_MUL_MAT));
    CHECK(!is_taken(type, 256, 1, GGML_OP_MUL_MAT, GGML_TYPE_F16));
  }
  CHECK(is_taken(GGML_TYPE_F16, 32, 1, GGML_OP_MUL_MAT));
  CHECK(!is_taken(GGML_TYPE_F16, 33, 1, GGML_OP_MUL_MAT));
  CHECK(!is_taken(GGML_TYPE_F32, 8, 1, GGML_OP_MUL_MAT));
  CHECK(!is_taken(GGML_TYPE_Q2_K, 256, 1, GGML_OP_MUL_MAT));
  {
    const df2::StockScope stock(true);
    CHECK(!is_taken(GGML_TYPE_Q4_0, 256, 1, GGML_OP_MUL_MAT));
    const df2::StockScope inner(false);
    CHECK(!is_taken(GGML_TYPE_Q4_0, 256, 1, GGML_OP_MUL_MAT));
  }
  CHECK(is_taken(GGML_TYPE_Q4_0, 256, 1, GGML_OP_MUL_MAT));
}

// Graphs that would have to be refused before they are computed.
void test_what_can_be_computed() {
  const Weights packed(GGML_TYPE_Q4_0, 64, 32, 1, df2::packed_buffer_type(), quantise(GGML_TYPE_Q4_0, 64, 32, 14));
  const auto can_compute = [](const Build &build) {
    const ggml_context_ptr context = make_context();
    ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
    ggml_build_forward_expand(graph, build(context.get()));
    return df2::can_compute_packed(graph);
  };
  const auto rows = [](ggml_context *context) { return ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, 8); };
  CHECK(can_compute([&](ggml_context *context) { return ggml_mul_mat(context, packed.tensor, rows(context)); }));
  CHECK(!can_compute([&](ggml_context *context) {
    ggml_tensor *upper = ggml_view_2d(context, packed.tensor, 64, 16, packed.tensor->nb[1], 0);
    return ggml_mul_mat(context, upper, rows(context));
  }));
  CHECK(!can_compute([&](ggml_context *context) {
    return ggml_get_rows(context, packed.tensor, ggml_new_tensor_1d(context, GGML_TYPE_I32, 8));
  }));
  CHECK(!can_compute([&](ggml_context *context) {
    ggml_tensor *float_rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, 64, 32);
    return ggml_cpy(context, float_rows, packed.tensor);
  }));
}

void test_big_weights() {
  constexpr int64_t n_in = 256;
  constexpr int64_t n_out = 40000;  // packed by several threads
  const std::vector<uint8_t> data = quantise(GGML_TYPE_Q4_0, n_in, n_out, 12);
  const uint64_t before = df2::all_packed_bytes().packed;
  {
    const df2::PackedCount count;
    const Weights packed(GGML_TYPE_Q4_0, n_in, n_out, 1, df2::packed_buffer_type(), data);
    CHECK(count.bytes().packed >= data.size());
    CHECK(df2::all_packed_bytes().packed == before + count.bytes().packed);
    const std::vector<float> x = noise(n_in, 13);
    check_values(GGML_TYPE_Q4_0, data, x, n_in, n_out, 1, multiply(packed.tensor, x, 1, 2));
  }
  CHECK(df2::all_packed_bytes().packed == before);
}

// -- Registration -----------------------------------------------------------------------------------------------------

bool is_registered() {
  for (const ggml_backend_buffer_type_t type : ggml_backend_cpu_get_extra_buffer_types()) {
    if (type == df2::packed_buffer_type()) {
      return true;
    }
  }
  return false;
}

const df2_qmm_kernel *right_kernel;

// A kernel that gets one output in 37 wrong.
void multiply_badly(float *sums, const void *tile, const void *batch, int32_t n_rows, int64_t n_in) {
  right_kernel->multiply(sums, tile, batch, n_rows, n_in);
  sums[4] = -sums[4];
}

void test_failing_self_test() {
  df2::KernelTable table = df2::choose_kernels(df2_cpu_features(), true);
  right_kernel = table.matmul[DF2_QMM_Q8_0];
  df2_qmm_kernel broken = *right_kernel;
  broken.multiply = multiply_badly;
  table.matmul[DF2_QMM_Q8_0] = &broken;
  const df2::Registration result = df2::register_kernels(table, broken.isa);
  CHECK(result.status.state == DF2_KERNELS_FAILED);
  CHECK(std::strstr(result.status.note, "q8_0") != nullptr);
  CHECK(is_registered());  // a list that other threads go through is not changed again
  CHECK(!is_taken(GGML_TYPE_Q4_0, 256, 1, GGML_OP_MUL_MAT));
  CHECK(result.level == DF2_LOG_WARN && result.line.find("self-test") != std::string::npos);
}

// A request that cannot be met is an error wherever kernels would come in, and only there.
void check_refused(df2_status expected, const char *message, const char *target_path, const char *drafter_path) {
  CHECK_STATUS(df2_kernels_enable(), expected);
  CHECK(std::strstr(df2_error_last(), message) != nullptr);
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_open(&target, target_path, nullptr), expected);
  df2_drafter *drafter = nullptr;
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path, nullptr), expected);
  df2_drafter_options options = DF2_DRAFTER_OPTIONS_INIT;
  options.kernels = DF2_KERNELS_OFF;
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path, &options), DF2_OK);
  df2_drafter_free(drafter);
  CHECK(info().state == DF2_KERNELS_UNKNOWN);
}

void test_environment(const char *target_path, const char *drafter_path) {
  const char *given = std::getenv("DF2_FORCE_ISA");
  const std::string before = given != nullptr ? given : "";
  setenv("DF2_FORCE_ISA", "mmx", 1);
  check_refused(DF2_EINVAL, "this CPU has", target_path, drafter_path);
#if defined(__x86_64__)
  setenv("DF2_FORCE_ISA", "sme2", 1);
#else
  setenv("DF2_FORCE_ISA", "avx512", 1);
#endif
  check_refused(DF2_EUNSUPPORTED, "only has", target_path, drafter_path);
  unsetenv("DF2_FORCE_ISA");
  setenv("DF2_KERNELS", "maybe", 1);
  check_refused(DF2_EINVAL, "on or off", target_path, drafter_path);
  unsetenv("DF2_KERNELS");
  if (!before.empty()) {
    setenv("DF2_FORCE_ISA", before.c_str(), 1);
  }
}

void test_options(const char *target_path, const char *drafter_path) {
  df2_target_options target_options = DF2_TARGET_OPTIONS_INIT;
  df2_drafter_options drafter_options = DF2_DRAFTER_OPTIONS_INIT;
  df2_target *target = nullptr;
  df2_drafter *drafter = nullptr;
  target_options.kernels = 7;
  CHECK_STATUS(df2_target_open(&target, target_path, &target_options), DF2_EINVAL);
  target_options.kernels = DF2_KERNELS_DEFAULT;
  target_options.swa_full = 2;
  CHECK_STATUS(df2_target_open(&target, target_path, &target_options), DF2_EINVAL);
  target_options.swa_full = 1;
  drafter_options.kernels = -1;
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path, &drafter_options), DF2_EINVAL);
  for (const int32_t kernels : {DF2_KERNELS_OFF, DF2_KERNELS_DEFAULT}) {
    const bool is_on = kernels == DF2_KERNELS_DEFAULT;
    target_options.kernels = drafter_options.kernels = kernels;
    CHECK_STATUS(df2_target_open(&target, target_path, &target_options), DF2_OK);
    CHECK_STATUS(df2_drafter_load(&drafter, drafter_path, &drafter_options), DF2_OK);
    df2_session *session = nullptr;
    CHECK_STATUS(df2_session_create(&session, target, drafter, nullptr), DF2_OK);
    df2_stats stats = {};
    stats.struct_size = sizeof(stats);
    CHECK_STATUS(df2_session_stats_get(session, &stats), DF2_OK);
    df2_drafter_info drafter_info = {};
    drafter_info.struct_size = sizeof(drafter_info);
    CHECK_STATUS(df2_drafter_info_get(drafter, &drafter_info), DF2_OK);
    CHECK((stats.target_packed_bytes > 0) == is_on);
    CHECK((stats.drafter_packed_bytes > 0) == is_on);
    CHECK(stats.drafter_packed_bytes == drafter_info.packed_bytes);
    CHECK(info().packed_bytes >= stats.target_packed_bytes);
    CHECK((info().packed_bytes > 0) == is_on);
    df2_session_free(session);
    df2_drafter_free(drafter);
    df2_target_free(target);
  }
  CHECK(info().packed_bytes == 0);
}

// Whoever asks while the kernels are being tested waits for the result.
void test_enabling_at_once() {
  std::array<int32_t, 4> states = {};
  std::vector<std::thread> threads;
  for (int32_t &state : states) {
    threads.emplace_back([&state] { state = df2_kernels_enable() == DF2_OK ? info().state : DF2_KERNELS_UNKNOWN; });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  for (const int32_t state : states) {
    CHECK(state != DF2_KERNELS_UNKNOWN && state == info().state);
  }
}

int test_disabled() {
  setenv("DF2_KERNELS", "off", 1);
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  CHECK(info().state == DF2_KERNELS_DISABLED);
  CHECK(*info().isa == '\0' && std::strstr(info().note, "DF2_KERNELS") != nullptr);
  CHECK(!is_registered());
  CHECK(df2::drafter_buffer_type() == nullptr);
  return report("kernels disabled");
}

int test_late() {
  // what loading a model does
  const auto get_types = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts"));
  get_types(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0));
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  CHECK(info().state == DF2_KERNELS_LATE);
  CHECK(*info().isa != '\0' && *info().note != '\0');
  CHECK(log_lines.size() == 1);
  CHECK(df2::drafter_buffer_type() != nullptr);
  return report("kernels late");
}

}  // namespace

int main(int argc, char **argv) {
  df2_log_set(keep_line, nullptr);
  unsetenv("DF2_KERNELS");  // what the tests need of it they set
  if (argc < 2) {
    std::fprintf(stderr, "usage: test_kernels TARGET|disabled|late\n");
    return 2;
  }
  const std::string mode = argv[1];
  if (mode == "disabled") {
    return test_disabled();
  }
  if (mode == "late") {
    return test_late();
  }
  const char *isa = std::getenv("DF2_FORCE_ISA");
  const std::string name = std::string("test_kernels_") + (isa != nullptr ? isa : "best") + ".gguf";
  const char *drafter_path = name.c_str();
  write_tiny_drafter(TinyDrafter(), argv[1], drafter_path);
  test_failing_self_test();
  test_environment(argv[1], drafter_path);
  log_lines.clear();
  test_enabling_at_once();
  if (info().state == DF2_KERNELS_UNSUPPORTED) {
    std::printf("kernels: none for this CPU\n");
    return report("kernels");
  }
  CHECK(info().state == DF2_KERNELS_ACTIVE);
  const char *forced = std::getenv("DF2_FORCE_ISA");
  CHECK(forced == nullptr || std::strcmp(forced, info().isa) == 0);
  CHECK(is_registered());
  CHECK(log_lines.size() == 1);
  // who has forced the slow ones, perhaps long ago, is told
  CHECK((log_lines[0].find("slower") != std::string::npos) == (std::strcmp(info().isa, "ref") == 0));
  test_options(argv[1], drafter_path);
  test_what_is_taken();
  test_what_can_be_computed();
  test_mul_mat_shapes();
  test_strided_input();
  test_expert_shapes();
  test_bad_expert_ids();
  test_big_weights();
  return report("kernels");
}
