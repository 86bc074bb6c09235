// One of llama.cpp's own tests of whole models, run on ggml's CPU back end with this library's kernels.
//
// usage: <suite> [--stock] [suite options]
// --stock: with llama.cpp's own kernels, to see whose a failure is.

#include <cstdio>
#include <cstring>
#include <vector>

#include "../backend_ops/probe.h"
#include "dflash2.h"

// The test's main().
int llama_suite(int argc, char **argv);

namespace {

constexpr int kSkipped = 77;  // SKIP_RETURN_CODE

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
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  const bool is_stock = argc > 1 && std::strcmp(argv[1], "--stock") == 0;
  std::vector<char *> arguments(argv, argv + argc);
  if (is_stock) {
    arguments.erase(arguments.begin() + 1);
  } else if (const int problem = enable_kernels(); problem != 0) {
    return problem;
  } else {
    backend_ops::install_probe();
  }
  const int n_arguments = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  const int status = llama_suite(n_arguments, arguments.data());
  const long long n_computed = backend_ops::probe_counts().computed;
  std::printf("\nnodes computed by this library: %lld\n", n_computed);
  if (!is_stock && n_computed == 0) {
    std::printf("FAILED: this library computed nothing\n");
    return 1;
  }
  return status;
}
