// What a short rewind costs besides llama.cpp's own search of its cache, by length of the context: a block of tokens is
// decoded and dropped again. Run it alone: bench_rewind TARGET.gguf [N_CTX ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dflash2.h"
#include "llama.h"

namespace {

constexpr int32_t kBlock = 8;
constexpr int32_t kRepeats = 101;

void require(int32_t status) {
  if (status != DF2_OK) {
    std::fprintf(stderr, "%s\n", df2_error_last());
    std::exit(1);
  }
}

template <typename Work>
double micros(const Work &work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void measure(const char *path, int32_t n_ctx) {
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = n_ctx;
  df2_target *target = nullptr;
  df2_session *session = nullptr;
  require(df2_target_open(&target, path, &options));
  require(df2_session_create(&session, target, nullptr, nullptr));
  llama_memory_t memory = llama_get_memory(df2_target_context(target));
  const int32_t n_kept = n_ctx - kBlock;
  const std::vector<int32_t> tokens(static_cast<size_t>(n_ctx), 7);
  require(df2_session_prefill(session, tokens.data(), n_kept));
  std::vector<double> whole;
  std::vector<double> search;
  for (int32_t i = 0; i < kRepeats; ++i) {
    // to where the block began: the token before it is the anchor from the second time on
    require(df2_session_prefill(session, tokens.data(), n_ctx - df2_session_n_tokens(session)));
    whole.push_back(micros([&] { require(df2_session_rewind(session, n_kept + 1)); }));
    // the same search, which finds nothing
    search.push_back(micros([&] { llama_memory_seq_rm(memory, 0, n_ctx, -1); }));
  }
  std::printf("context %6d: rewind %8.1f us, of which llama.cpp's search %8.1f us\n", n_ctx, median(whole),
              median(search));
  df2_session_free(session);
  df2_target_free(target);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_rewind TARGET.gguf [N_CTX ...]\n");
    return 2;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  std::vector<int32_t> lengths;
  for (int i = 2; i < argc; ++i) {
    lengths.push_back(std::atoi(argv[i]));
  }
  for (const int32_t n_ctx : lengths.empty() ? std::vector<int32_t>{512, 4096, 32768} : lengths) {
    measure(argv[1], n_ctx);
  }
  return 0;
}
