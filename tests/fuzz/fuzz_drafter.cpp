// Damaged drafter files, made from a valid one by a seeded generator: each must load or be refused with a status.
// Whatever loads must also draft without harm. Aborts, sanitizer reports and time-outs are the failures.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "check.h"
#include "damage.h"
#include "dflash2.h"
#include "llama.h"
#include "tiny_drafter.h"

namespace {

const std::string drafter_path = "fuzz_drafter.gguf";

int try_file(df2_target *target) {
  df2_drafter *drafter = nullptr;
  if (df2_drafter_load(&drafter, drafter_path.c_str(), nullptr) != DF2_OK) {
    CHECK(drafter == nullptr);
    CHECK(std::strlen(df2_error_last()) > 0);
    return 0;
  }
  df2_session *session = nullptr;
  int n_drafts = 0;
  if (df2_session_create(&session, target, drafter, nullptr) == DF2_OK) {
    const int32_t prompt[] = {7, 23, 99, 4, 150};
    CHECK_STATUS(df2_session_prefill(session, prompt, 5), DF2_OK);
    int32_t tokens[DF2_MAX_DRAFT + 1];
    df2_step_result result;
    CHECK_STATUS(df2_session_step(session, tokens, 1, &result), DF2_OK);
    df2_drafter_info info = {};
    info.struct_size = sizeof(info);
    CHECK_STATUS(df2_drafter_info_get(drafter, &info), DF2_OK);
    CHECK_STATUS(df2_session_set_n_draft(session, info.block_size - 1), DF2_OK);
    for (int i = 0; i < 2; ++i) {
      CHECK_STATUS(df2_session_step(session, tokens, DF2_MAX_DRAFT + 1, &result), DF2_OK);
      n_drafts += result.n_drafted > 0 ? 1 : 0;
    }
  }
  df2_session_free(session);
  df2_drafter_free(drafter);
  return n_drafts;
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
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = 64;
  options.n_threads = 1;
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_open(&target, argv[1], &options), DF2_OK);
  int n_drafted = 0;
  for (const int32_t version : {1, 2}) {
    TinyDrafter shape;
    shape.version = version;
    shape.window = 8;
    shape.layer_has_window = {true, false};
    write_tiny_drafter(shape, argv[1], drafter_path);
    const Bytes valid = read_file(drafter_path);
    const size_t n_header = header_size(drafter_path);
    CHECK(try_file(target) == 2);
    for (int i = 0; i < std::atoi(argv[2]) / 2; ++i) {
      Bytes damaged = valid;
      damage(&damaged, n_header, &generator);
      write_file(drafter_path, damaged);
      n_drafted += try_file(target) > 0 ? 1 : 0;
    }
  }
  df2_target_free(target);
  std::remove(drafter_path.c_str());
  std::printf("seed %u: %d damaged files still drafted\n", seed, n_drafted);
  return report("fuzz_drafter");
}
