// The reference kernels against plainer definitions, at sizes around the vector widths, with guard values around the
// outputs.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"
#include "ops/argmax/argmax.h"
#include "ops/dynconv/dynconv.h"
#include "ops/select/select.h"

namespace {

constexpr float kGuard = 12345.0f;
std::mt19937 generator(20260801);

std::vector<float> random_floats(size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float &value : values) {
    value = normal(generator);
  }
  return values;
}

void test_dynconv(int64_t n_rows, int64_t n_embd, int64_t kernel, int64_t group) {
  const int64_t n_groups = n_embd / group;
  const int64_t stride = 2 * kernel * n_groups + 3;
  const std::vector<float> x = random_floats(static_cast<size_t>(n_rows * n_embd));
  const std::vector<float> base = random_floats(static_cast<size_t>(kernel * n_embd));
  const std::vector<float> delta = random_floats(static_cast<size_t>(n_rows * stride));
  std::vector<float> y(static_cast<size_t>(n_rows * n_embd) + 2, kGuard);
  // two calls, as two threads would share the block
  const int64_t half = n_rows / 2;
  df2_dynconv_f32_ref(y.data() + 1, x.data(), base.data(), delta.data(), stride, 0, half, n_embd, kernel, group);
  df2_dynconv_f32_ref(y.data() + 1, x.data(), base.data(), delta.data(), stride, half, n_rows, n_embd, kernel, group);
  CHECK(y.front() == kGuard && y.back() == kGuard);
  for (int64_t i = 0; i < n_rows; ++i) {
    for (int64_t c = 0; c < n_embd; ++c) {
      double expected = 0.0;
      double magnitude = 1.0;
      for (int64_t t = 0; t < kernel && t <= i; ++t) {
        const double weight = static_cast<double>(base[static_cast<size_t>(t * n_embd + c)]) +
                              delta[static_cast<size_t>(i * stride + t * n_groups + c / group)];
        expected += weight * x[static_cast<size_t>((i - t) * n_embd + c)];
        magnitude += std::fabs(weight * x[static_cast<size_t>((i - t) * n_embd + c)]);
      }
      CHECK(std::fabs(y[static_cast<size_t>(1 + i * n_embd + c)] - expected) < 1e-6 * magnitude);
    }
  }
}

void test_topk(int64_t n, int64_t k, bool with_ties) {
  std::vector<float> logits = random_floats(static_cast<size_t>(n));
  for (float &logit : logits) {
    logit = with_ties ? std::round(logit) : logit;
  }
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  std::vector<int32_t> ids(static_cast<size_t>(k) + 1, -7);
  std::vector<float> values(static_cast<size_t>(k) + 1, kGuard);
  df2_select_topk_f32_ref(ids.data(), values.data(), logits.data(), n, k);
  CHECK(ids.back() == -7 && values.back() == kGuard);
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    CHECK(ids[i] == order[i]);
    CHECK(values[i] == logits[static_cast<size_t>(order[i])]);
  }
  CHECK(df2_argmax_f32_ref(logits.data(), n) == order[0]);
}

void test_not_a_number() {
  std::vector<float> logits(200, NAN);
  std::vector<int32_t> ids(4);
  std::vector<float> values(4);
  df2_select_topk_f32_ref(ids.data(), values.data(), logits.data(), 200, 4);
  CHECK(ids == (std::vector<int32_t>{0, 1, 2, 3}));
  CHECK(df2_argmax_f32_ref(logits.data(), 200) == 0);
  logits[150] = -3.0f;
  df2_select_topk_f32_ref(ids.data(), values.data(), logits.data(), 200, 4);
  CHECK(ids[0] == 150);
  CHECK(df2_argmax_f32_ref(logits.data(), 200) == 150);
}

void test_scores(int64_t k, int64_t rank) {
  const std::vector<float> logits = random_floats(static_cast<size_t>(k));
  const std::vector<float> condition = random_floats(static_cast<size_t>(rank));
  const std::vector<float> successors = random_floats(static_cast<size_t>(k * rank));
  std::vector<float> scores(static_cast<size_t>(k) + 1, kGuard);
  const int64_t best =
      df2_select_scores_f32_ref(scores.data(), logits.data(), condition.data(), successors.data(), k, rank);
  CHECK(scores.back() == kGuard);
  for (int64_t c = 0; c < k; ++c) {
    double expected = logits[static_cast<size_t>(c)];
    for (int64_t r = 0; r < rank; ++r) {
      expected +=
          static_cast<double>(condition[static_cast<size_t>(r)]) * successors[static_cast<size_t>(c * rank + r)];
    }
    CHECK(std::fabs(scores[static_cast<size_t>(c)] - expected) < 1e-4);
    CHECK(scores[static_cast<size_t>(c)] <= scores[static_cast<size_t>(best)]);
  }
}

}  // namespace

int main() {
  for (const int64_t kernel : {1, 2, 3, 5}) {
    for (const int64_t group : {1, 8, 15, 16, 17}) {
      for (const int64_t n_rows : {1, 2, 7, 16}) {
        test_dynconv(n_rows, group * 6, kernel, group);
      }
    }
  }
  for (const int64_t n : {1, 16, 63, 64, 65, 127, 1000, 49152}) {
    for (const int64_t k : {1, 4, 16}) {
      if (k <= n) {
        test_topk(n, k, false);
        test_topk(n, k, true);
      }
    }
  }
  test_not_a_number();
  for (const int64_t rank : {1, 7, 8, 64, 257}) {
    test_scores(16, rank);
  }
  return report("ops");
}
