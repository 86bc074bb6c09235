// On a file system that cannot map files, they are read: the same tensors, the same tokens.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "common/error.h"
#include "common/gguf_file.h"
#include "damage.h"
#include "dflash2.h"
#include "llama.h"
#include "tiny_drafter.h"

namespace {
bool refuses = false;
int n_refused = 0;
}  // namespace

// In place of the C library's, also for llama.cpp.
extern "C" void *mmap(void *address, size_t length, int access, int flags, int descriptor, off_t offset) noexcept {
  if (refuses && descriptor >= 0) {
    ++n_refused;
    errno = ENODEV;
    return MAP_FAILED;
  }
  return reinterpret_cast<void *>(syscall(SYS_mmap, address, length, access, flags, descriptor, offset));
}

#if defined(__GLIBC__)
extern "C" void *mmap64(void *address, size_t length, int access, int flags, int descriptor, off64_t offset) noexcept {
  return mmap(address, length, access, flags, descriptor, offset);
}
#endif

namespace {

const std::string drafter_path = "test_unmapped.gguf";

void test_tensors(const std::string &path) {
  refuses = false;
  const df2::GgufFile mapped(path);
  refuses = true;
  df2::GgufFile read(path);
  CHECK(mapped.map()->is_mapped() && !read.map()->is_mapped());
  read.read_data();
  CHECK(mapped.tensors().size() == read.tensors().size());
  for (size_t i = 0; i < read.tensors().size(); ++i) {
    const df2::TensorInfo &one = mapped.tensors()[i];
    const df2::TensorInfo &other = read.tensors()[i];
    CHECK(one.name == other.name && std::memcmp(one.data, other.data, one.size_bytes) == 0);
  }
}

// What a pair of files generates, drafting.
std::vector<int32_t> generate(const std::string &target_path, int *n_drafted) {
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = 64;
  options.n_threads = 1;
  df2_target *target = nullptr;
  df2_drafter *drafter = nullptr;
  df2_session *session = nullptr;
  CHECK_STATUS(df2_target_open(&target, target_path.c_str(), &options), DF2_OK);
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path.c_str(), nullptr), DF2_OK);
  CHECK_STATUS(df2_session_create(&session, target, drafter, nullptr), DF2_OK);
  CHECK_STATUS(df2_session_set_n_draft(session, 4), DF2_OK);
  const int32_t prompt[] = {7, 23, 99, 4, 150};
  CHECK_STATUS(df2_session_prefill(session, prompt, 5), DF2_OK);
  std::vector<int32_t> text;
  for (int i = 0; i < 6; ++i) {
    int32_t tokens[DF2_MAX_DRAFT + 1];
    df2_step_result result = {};
    CHECK_STATUS(df2_session_step(session, tokens, DF2_MAX_DRAFT + 1, &result), DF2_OK);
    text.insert(text.end(), tokens, tokens + result.n_tokens);
    *n_drafted += result.n_drafted;
  }
  df2_session_free(session);
  df2_drafter_free(drafter);
  df2_target_free(target);
  return text;
}

void test_generation(const std::string &target_path) {
  int n_drafted = 0;
  refuses = false;
  const std::vector<int32_t> expected = generate(target_path, &n_drafted);
  refuses = true;
  n_refused = 0;
  CHECK(generate(target_path, &n_drafted) == expected);
  CHECK(n_refused > 0 && n_drafted > 0);
}

void test_cut_file() {
  const Bytes whole = read_file(drafter_path);
  write_file(drafter_path, Bytes(whole.begin(), whole.end() - 100));
  refuses = true;
  df2_drafter *drafter = nullptr;
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path.c_str(), nullptr), DF2_EFORMAT);
  CHECK(std::strstr(df2_error_last(), "the file is incomplete") != nullptr);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TARGET.gguf\n", argv[0]);
    return 2;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  write_tiny_drafter(TinyDrafter(), argv[1], drafter_path);
  test_tensors(argv[1]);
  test_generation(argv[1]);
  test_cut_file();
  std::remove(drafter_path.c_str());
  return report("unmapped");
}
