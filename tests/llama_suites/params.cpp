// The options of llama.cpp's tests, in place of common/arg.cpp, which knows those of all its programs.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arg.h"
#include "common.h"

bool common_params_parse(int argc, char **argv, common_params &params, llama_example /*example*/,
                         void (* /*print_usage*/)(int, char **)) {
  for (int i = 1; i < argc; i += 2) {
    const char *name = argv[i];
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (std::strcmp(name, "-m") == 0) {
      params.model.path = value;
    } else if (std::strcmp(name, "-p") == 0) {
      params.prompt = value;
    } else if (std::strcmp(name, "-n") == 0) {
      params.n_predict = std::atoi(value);
    } else if (std::strcmp(name, "-c") == 0) {
      params.n_ctx = std::atoi(value);
    } else if (std::strcmp(name, "-ub") == 0) {
      params.n_ubatch = std::atoi(value);
    } else if (std::strcmp(name, "-np") == 0) {
      params.n_parallel = std::atoi(value);
    } else if (std::strcmp(name, "-t") == 0) {
      params.cpuparams.n_threads = std::atoi(value);
      params.cpuparams_batch.n_threads = std::atoi(value);
    } else {
      std::fprintf(stderr, "unknown option '%s'\n", name);
      return false;
    }
  }
  return true;
}
