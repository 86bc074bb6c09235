// What is planned of a target's and a drafter's memory against what is then allocated, byte for byte.
#include <cstdio>
#include <string>

#include "check.h"
#include "common/error.h"
#include "core/memory_plan.h"
#include "cpu_backend/simulated_memory.h"
#include "dflash2.h"
#include "drafter/load_drafter.h"
#include "tiny_drafter.h"

namespace {

using df2::MemoryPlan;
using df2::TargetBytes;

constexpr char kDrafter[] = "test_memory_plan.gguf";

void compare(const TargetBytes &planned, const TargetBytes &real) {
  CHECK(planned.packed == real.packed);
  CHECK(planned.copied == real.copied);
  CHECK(planned.attention == real.attention);
  CHECK(planned.window == real.window);
  CHECK(planned.state == real.state);
  CHECK(planned.rewind == real.rewind);
  CHECK(planned.compute == real.compute);
  CHECK(planned.work == real.work);
}

// Pages of the process that belong to no file.
long anonymous_bytes() {
  std::FILE *file = std::fopen("/proc/self/status", "r");
  long kilobytes = 0;
  for (char line[256]; file != nullptr && std::fgets(line, sizeof(line), file) != nullptr;) {
    std::sscanf(line, "RssAnon: %ld", &kilobytes);
  }
  if (file != nullptr) {
    std::fclose(file);
  }
  return kilobytes * 1024;
}

void test_target(const std::string &path, bool kernels, int32_t n_ctx) {
  const df2::TargetOptions options = {n_ctx, 128, 2, kernels, GGML_TYPE_F16, GGML_TYPE_F16, true};
  const MemoryPlan plan = df2::plan_memory({path, options, 0});
  CHECK(plan.problem.empty());
  const auto target = df2::Target::open(path, options);
  CHECK(plan.n_ctx == target->n_ctx());
  compare(plan.target, target->bytes());
  std::printf("%s, kernels %s, n_ctx %d: packed %llu, attention %llu, window %llu, state %llu + %llu, compute %llu\n",
              path.c_str(), kernels ? "on" : "off", n_ctx, (unsigned long long)plan.target.packed,
              (unsigned long long)plan.target.attention, (unsigned long long)plan.target.window,
              (unsigned long long)plan.target.state, (unsigned long long)plan.target.rewind,
              (unsigned long long)plan.target.compute);
}

void test_drafter(const std::string &path) {
  TinyDrafter shape;
  shape.window = 64;
  shape.layer_has_window = {true, false};
  write_tiny_drafter(shape, path, kDrafter);
  df2_target_options target_options = DF2_TARGET_OPTIONS_INIT;
  target_options.n_ctx = 512;
  df2_session_options session_options = DF2_SESSION_OPTIONS_INIT;
  session_options.window = 300;
  session_options.cache_type = DF2_CACHE_F32;
  df2_plan plan = {};
  plan.struct_size = sizeof(plan);
  CHECK_STATUS(df2_target_plan(&plan, path.c_str(), &target_options, kDrafter, nullptr, &session_options), DF2_OK);
  CHECK(plan.problem[0] == '\0' && plan.n_ctx == 512);
  df2_target *target = nullptr;
  df2_drafter *drafter = nullptr;
  df2_session *session = nullptr;
  CHECK_STATUS(df2_target_open(&target, path.c_str(), &target_options), DF2_OK);
  CHECK_STATUS(df2_drafter_load(&drafter, kDrafter, nullptr), DF2_OK);
  CHECK_STATUS(df2_session_create(&session, target, drafter, &session_options), DF2_OK);
  df2_stats stats = {};
  stats.struct_size = sizeof(stats);
  CHECK_STATUS(df2_session_stats_get(session, &stats), DF2_OK);
  CHECK(plan.drafter_cache_bytes == stats.drafter_cache_bytes);
  CHECK(plan.drafter_compute_bytes == stats.drafter_compute_bytes);
  CHECK(plan.drafter_packed_bytes == stats.drafter_packed_bytes);
  CHECK(plan.rewind_bytes == stats.target_rewind_bytes);
  CHECK(plan.drafter_mapped_bytes <= stats.drafter_weights_bytes);
  df2_session_free(session);
  df2_drafter_free(drafter);
  df2_target_free(target);
  std::remove(kDrafter);
}

void test_refusal(const std::string &path) {
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = 4096;
  options.max_bytes = 1 << 20;
  df2_plan plan = {};
  plan.struct_size = sizeof(plan);
  CHECK_STATUS(df2_target_plan(&plan, path.c_str(), &options, nullptr, nullptr, nullptr), DF2_OK);
  CHECK(plan.total_bytes > plan.available_bytes && plan.available_bytes == 1 << 20);
  const std::string problem = plan.problem;
  CHECK(problem.find("1.0 MiB are available") != std::string::npos);
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_open(&target, path.c_str(), &options), DF2_ENOMEM);
  CHECK(target == nullptr && problem == df2_error_last());
  options.max_bytes = UINT64_MAX;
  CHECK_STATUS(df2_target_open(&target, path.c_str(), &options), DF2_OK);
  df2_target_free(target);
}

// Of what is counted; sanitizers keep much beside it.
#ifdef DFLASH2_SANITIZE
constexpr long kMostTaken = 1 << 30;
#else
constexpr long kMostTaken = 64 << 20;
#endif

// A context whose cache alone would be gigabytes.
void test_nothing_is_taken(const std::string &path) {
  df2::plan_memory({path, {256, 128, 1, true, GGML_TYPE_F16, GGML_TYPE_F16, true}, 0});
  const long before = anonymous_bytes();
  const MemoryPlan plan = df2::plan_memory({path, {1 << 22, 128, 1, true, GGML_TYPE_F16, GGML_TYPE_F16, true}, 0});
  CHECK(plan.target.total() > (uint64_t{1} << 30));
  CHECK(anonymous_bytes() - before < kMostTaken);
  const MemoryPlan refused =
      df2::plan_memory({path, {2000000000, 128, 1, true, GGML_TYPE_F16, GGML_TYPE_F16, true}, uint64_t{1} << 30});
  CHECK(!refused.problem.empty() && refused.n_ctx == 1 << 22);
}

}  // namespace

int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    for (const int32_t n_ctx : {256, 4096}) {
      test_target(argv[i], true, n_ctx);
      test_target(argv[i], false, n_ctx);
    }
  }
  test_drafter(argv[1]);
  test_refusal(argv[1]);
  test_nothing_is_taken(argv[1]);
  return report("memory_plan");
}
