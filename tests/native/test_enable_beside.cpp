// Kernels that are enabled while another thread computes with ggml: each try in a process of its own, because it
// happens once in one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu_backend/kernels.h"
#include "dflash2.h"
#include "ggml_nodes.h"
#include "ops/common/cpu.h"

namespace {

constexpr int kTries = 25;

df2_kernels_state state() {
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  CHECK_STATUS(df2_kernels_info_get(&info), DF2_OK);
  return static_cast<df2_kernels_state>(info.state);
}

// Attention of one head over 300 keys, on two threads.
std::vector<float> attend() {
  constexpr int64_t kSize = 64;
  return compute(
      [](ggml_context *context) {
        ggml_tensor *q = ggml_new_tensor_3d(context, GGML_TYPE_F32, kSize, 3, 4);
        ggml_tensor *k = ggml_new_tensor_3d(context, GGML_TYPE_F16, kSize, 300, 2);
        ggml_tensor *v = ggml_new_tensor_3d(context, GGML_TYPE_F16, kSize, 300, 2);
        return ggml_flash_attn_ext(context, q, k, v, nullptr, 0.125f, 0.0f, 0.0f);
      },
      [](ggml_tensor *y) {
        const std::vector<float> values = noise(kSize * 300 * 2, 1);
        ggml_backend_tensor_set(y->src[0], values.data(), 0, ggml_nbytes(y->src[0]));
        for (int i = 1; i < 3; ++i) {
          ggml_fp32_to_fp16_row(values.data(), static_cast<ggml_fp16_t *>(y->src[i]->data), kSize * 300 * 2);
        }
      },
      2);
}

const df2_qmm_kernel *right_kernel;

void multiply_badly(float *sums, const void *tile, const void *batch, int32_t n_rows, int64_t n_in) {
  right_kernel->multiply(sums, tile, batch, n_rows, n_in);
  sums[4] = -sums[4];
}

void enable_broken_kernels() {
  df2::KernelTable table = df2::choose_kernels(df2_cpu_features(), true);
  right_kernel = table.matmul[DF2_QMM_Q8_0];
  df2_qmm_kernel broken = *right_kernel;
  broken.multiply = multiply_badly;
  table.matmul[DF2_QMM_Q8_0] = &broken;
  CHECK(df2::register_kernels(table, broken.isa).status.state == DF2_KERNELS_FAILED);
}

// Other threads' results are ggml's until the kernels have passed their test, and for ever if they do not.
int enable_beside_computing(bool is_broken) {
  const std::vector<float> stock = attend();
  std::atomic<bool> is_over{false};
  std::atomic<int> n_computed{0};
  int n_other = 0;
  std::thread other([&] {
    for (; !is_over; ++n_computed) {
      n_other += same_bits(attend(), stock) ? 0 : 1;
    }
  });
  while (n_computed < 2) {
    std::this_thread::yield();
  }
  if (is_broken) {
    enable_broken_kernels();
  } else {
    CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  }
  const int n_before = n_computed;
  while (n_computed < n_before + 2) {
    std::this_thread::yield();
  }
  is_over = true;
  other.join();
  CHECK(is_broken ? n_other == 0 : n_other > 0);
  CHECK(same_bits(attend(), stock) == is_broken);
  return report("enabled beside computing");
}

int enable_beside_reader() {
  {
    const df2::ListReader reader;
    CHECK_STATUS(df2_kernels_enable(), DF2_EUNSUPPORTED);
    CHECK(std::strstr(df2_error_last(), "df2_kernels_enable first") != nullptr);
    CHECK(state() == DF2_KERNELS_UNKNOWN);
  }
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  CHECK(state() == DF2_KERNELS_ACTIVE);
  const df2::ListReader reader;
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  return report("enabled beside a reader");
}

template <typename Body>
void check_in_child(const char *what, const Body &body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int result = body();
    std::fflush(nullptr);
    _exit(result);
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (status != 0) {
    std::fprintf(stderr, "%s: the child ended with status %d\n", what, status);
  }
  CHECK(status == 0);
}

}  // namespace

int main() {
  for (int i = 0; i < kTries; ++i) {
    check_in_child("broken kernels", [] { return enable_beside_computing(true); });
    check_in_child("kernels", [] { return enable_beside_computing(false); });
  }
  check_in_child("a reader", enable_beside_reader);
  return report("enable_beside");
}
