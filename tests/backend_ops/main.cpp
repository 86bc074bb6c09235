// llama.cpp's own test of its back ends, run on ggml's CPU back end with this library's kernels. The suite compares
// each case with a second CPU back end that is told to use ggml's reference code, where this library stands aside.
//
// usage: backend_ops OPERATIONS [--packed | --tapped | --untouched] [suite options]
// OPERATIONS and options are test-backend-ops': -p REGEX chooses cases by their parameters; no -j, one case at a time.
// --packed: weights are packed where they can be; --tapped: results are read as outputs of layers; --untouched: this
// library must leave all of it to ggml.

#include <cstdio>
#include <cstring>
#include <vector>

#include "dflash2.h"
#include "hooks.h"
#include "probe.h"

using namespace backend_ops;

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE

enum class Mode { kPlain, kPacked, kTapped, kUntouched };

// 0, or what to exit with.
int enable_kernels() {
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  if (df2_kernels_enable() != DF2_OK || df2_kernels_info_get(&info) != DF2_OK) {
    std::fprintf(stderr, "the kernels cannot be enabled: %s\n", df2_error_last());
    return 1;
  }
  if (info.state == DF2_KERNELS_UNSUPPORTED) {
    std::fprintf(stderr, "skipped: there are no kernels for this CPU\n");
    return kSkipped;
  }
  if (info.state != DF2_KERNELS_ACTIVE) {
    std::fprintf(stderr, "the kernels are not in use: %s\n", info.note);
    return 1;
  }
  std::printf("kernels: %s\n", info.isa);
  return 0;
}

bool check(bool condition, const char *problem) {
  if (!condition) {
    std::printf("FAILED: %s\n", problem);
  }
  return condition;
}

// Whether the suite compared what it was meant to compare.
bool is_meaningful(Mode mode) {
  const ProbeCounts nodes = probe_counts();
  std::printf("%lld cases compared, %lld of them with nodes computed by this library\n",
              static_cast<long long>(cases().n_compared), static_cast<long long>(cases().n_computed));
  std::printf(
      "nodes offered to this library: %lld computed, %lld left to ggml; by the reference: %lld computed, %lld "
      "left to ggml, %lld of these without enough work area\n",
      static_cast<long long>(nodes.computed), static_cast<long long>(nodes.left),
      static_cast<long long>(nodes.ref_computed), static_cast<long long>(nodes.ref_left),
      static_cast<long long>(nodes.ref_starved));
  for (const auto &[type, n] : cases().n_with_packed) {
    std::printf("  packed %s: %lld cases\n", ggml_type_name(type), static_cast<long long>(n));
  }
  bool is_fine = check(cases().n_compared > 0, "no case was compared");
  if (mode == Mode::kUntouched) {
    return check(nodes.computed + nodes.ref_computed == 0, "nodes were not left alone") && is_fine;
  }
  is_fine &= check(cases().n_computed > 0, "this library computed nothing");
  is_fine &= check(nodes.ref_computed == 0, "this library computed nodes of the reference");
  is_fine &= check(nodes.ref_starved == 0, "ggml's reference got less work area than it asks for");
  is_fine &= check(mode != Mode::kPacked || !cases().n_with_packed.empty(), "no weights were packed");
  return is_fine;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: backend_ops OPERATIONS [--packed | --tapped | --untouched] [suite options]\n");
    return 2;
  }
  std::vector<char *> arguments;
  for (const char *argument : {"test-backend-ops", "test", "-b", "CPU", "-o"}) {
    arguments.push_back(const_cast<char *>(argument));
  }
  Mode mode = Mode::kPlain;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--packed") == 0) {
      mode = Mode::kPacked;
    } else if (std::strcmp(argv[i], "--tapped") == 0) {
      mode = Mode::kTapped;
    } else if (std::strcmp(argv[i], "--untouched") == 0) {
      mode = Mode::kUntouched;
    } else {
      arguments.push_back(argv[i]);
    }
  }
  const int problem = enable_kernels();
  if (problem != 0) {
    return problem;
  }
  install_probe();
  set_packs_weights(mode == Mode::kPacked);
  set_taps(mode == Mode::kTapped);
  const int status = backend_ops_suite(static_cast<int>(arguments.size()), arguments.data());
  return is_meaningful(mode) && status == 0 ? 0 : 1;
}
