// Damaged target files: each must open, and decode a little, or be refused with a status. llama.cpp itself aborts on
// some of them, which is what this library's checks and its load guard are for.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "check.h"
#include "damage.h"
#include "dflash2.h"
#include "llama.h"

namespace {

const std::string damaged_path = "fuzz_target.gguf";

bool try_file() {
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = 64;
  options.n_threads = 1;
  df2_target *target = nullptr;
  if (df2_target_open(&target, damaged_path.c_str(), &options) != DF2_OK) {
    CHECK(target == nullptr);
    CHECK(std::strlen(df2_error_last()) > 0);
    return false;
  }
  df2_session *session = nullptr;
  if (df2_session_create(&session, target, nullptr, nullptr) == DF2_OK) {
    const int32_t prompt[] = {7, 23, 99, 4, 5};
    int32_t token;
    df2_step_result result;
    if (df2_session_prefill(session, prompt, 5) == DF2_OK) {
      const int32_t status = df2_session_step(session, &token, 1, &result);
      CHECK(status == DF2_OK || status == DF2_EPOISONED);  // a scale may have become infinite
    }
  }
  df2_session_free(session);
  df2_target_free(target);
  return true;
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s TARGET.gguf N_FILES [SEED]\n", argv[0]);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  const auto seed = static_cast<uint32_t>(argc > 3 ? std::atoi(argv[3]) : 1);
  std::mt19937 generator(seed);
  const Bytes valid = read_file(argv[1]);
  const size_t n_header = header_size(argv[1]);
  int n_opened = 0;
  for (int i = 0; i < std::atoi(argv[2]); ++i) {
    Bytes damaged = valid;
    damage(&damaged, n_header, &generator);
    write_file(damaged_path, damaged);
    n_opened += try_file() ? 1 : 0;
  }
  std::remove(damaged_path.c_str());
  std::printf("seed %u: %d damaged files still opened\n", seed, n_opened);
  return report("fuzz_target");
}
