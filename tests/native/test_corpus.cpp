// Files and paths that once failed: each must be refused, as a target and as a drafter, with a message that names the
// problem and the remedy. Aborts are failures too.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "common/log_capture.h"
#include "damage.h"
#include "dflash2.h"
#include "gguf.h"
#include "llama.h"

namespace {

namespace fs = std::filesystem;

void check_answer(int32_t status, const std::string &path, const std::string &words) {
  const std::string answer = df2_error_last();
  const bool is_right = status != DF2_OK && answer.find(words) != std::string::npos;
  test_check(is_right, "%s gave '%s' instead of '%s'", path.c_str(), answer.c_str(), words.c_str());
}

void check_target(const std::string &path, const std::string &words) {
  df2_target *target = nullptr;
  const int32_t status = df2_target_open(&target, path.c_str(), nullptr);
  CHECK(target == nullptr);
  check_answer(status, path, words);
  df2_target_free(target);
}

void check_drafter(const std::string &path, const std::string &words) {
  df2_drafter *drafter = nullptr;
  const int32_t status = df2_drafter_load(&drafter, path.c_str(), nullptr);
  CHECK(drafter == nullptr);
  check_answer(status, path, words);
  df2_drafter_free(drafter);
}

std::vector<std::string> columns(const std::string &line) {
  std::vector<std::string> fields;
  for (size_t begin = 0;;) {
    const size_t end = line.find(" | ", begin);
    fields.push_back(line.substr(begin, end == std::string::npos ? end : end - begin));
    if (end == std::string::npos) {
      return fields;
    }
    begin = end + 3;
  }
}

void test_files(const std::string &folder) {
  std::ifstream list(folder + "/corpus.txt");
  std::string line;
  int n_files = 0;
  while (std::getline(list, line)) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    const std::vector<std::string> row = columns(line);
    CHECK(row.size() == 4);
    check_target(folder + "/" + row.at(0), row.at(1));
    check_drafter(folder + "/" + row.at(0), row.at(2));
    ++n_files;
  }
  CHECK(n_files > 20);
}

void check_path(const std::string &path, const std::string &words) {
  check_target(path, words);
  check_drafter(path, words);
}

void test_paths() {
  const fs::path folder = "corpus_paths";
  fs::remove_all(folder);
  fs::create_directories(folder);
  check_path(folder, "a folder: give the GGUF file's own path");
  std::ofstream(folder / "config.json") << "{}";
  check_path(folder, "a Hugging Face folder: convert a drafter with `pydflash2 convert`");
  std::ofstream(folder / "b.gguf") << "x";
  check_path(folder, "own path (b.gguf)");
  fs::create_symlink("blobs/0123", folder / "link.gguf");
  check_path(folder / "link.gguf", "a link to blobs/0123, which is not there: download it again");
  check_path(folder / "none.gguf", "no such file");
  fs::create_directories(folder / ".cache/huggingface/download");
  std::ofstream(folder / ".cache/huggingface/download/none.gguf.0123.incomplete") << "x";
  check_path(folder / "none.gguf", "no such file (an .incomplete file in .cache/huggingface/download");
  check_path("somebody/some-model:Q4_K_M", "`hf download somebody/some-model`");
  check_path("https://example.com/model.gguf", "an address: nothing is downloaded here");
  check_path("~/model.gguf", "only shells know what ~ stands for");
  CHECK(mkfifo((folder / "fifo.gguf").c_str(), 0600) == 0);
  check_path(folder / "fifo.gguf", "not a regular file");
  if (geteuid() != 0) {
    std::ofstream(folder / "secret.gguf") << "x";
    fs::permissions(folder / "secret.gguf", fs::perms::none);
    check_path(folder / "secret.gguf", "Permission denied");
  }
  fs::remove_all(folder);
}

// Another part than the first is cut, or is another part than its name says.
void test_parts(const std::string &corpus) {
  const fs::path folder = "corpus_parts";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string first = folder / "big-00001-of-00003.gguf";
  const std::string second = folder / "big-00002-of-00003.gguf";
  fs::copy(corpus + "/big-00001-of-00003.gguf", first);
  const Bytes part = read_file(corpus + "/lone-00002-of-00003.gguf");
  write_file(second, part);
  check_target(first, "part 3 of 3, corpus_parts/big-00003-of-00003.gguf, is missing");
  write_file(folder / "big-00003-of-00003.gguf", part);
  check_target(first, "not part 3 of 3, as its name says");
  write_file(second, Bytes(part.begin(), part.end() - 20));
  check_target(first, "big-00002-of-00003.gguf': the file is incomplete");
  fs::remove_all(folder);
}

void ignore_log(ggml_log_level, const char *, void *) {}

struct Log {
  std::vector<std::string> lines;
};

// The program's log still gets what is looked at for the message, and is the same afterwards.
void test_log(const std::string &corpus) {
  Log log;
  const auto keep = [](ggml_log_level level, const char *text, void *payload) {
    if (level == GGML_LOG_LEVEL_ERROR) {
      static_cast<Log *>(payload)->lines.push_back(text);
    }
  };
  llama_log_set(keep, &log);
  check_target(corpus + "/architecture.gguf", "(error loading model: unknown model architecture: 'nobody-knows-this')");
  CHECK(log.lines.size() == 2);
  check_drafter(corpus + "/type-139.gguf", "type 139");
  CHECK(log.lines.size() > 2);
  llama_log_set(ignore_log, &log);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&corpus, i] {
      for (int j = 0; j < 25; ++j) {
        check_drafter(corpus + (i % 2 == 0 ? "/type-139.gguf" : "/type-77.gguf"),
                      i % 2 == 0 ? "IQ4_K of" : "type 77 (");
      }
    });
  }
  for (std::thread &thread : threads) {
    thread.join();
  }
  llama_log_set(keep, &log);
  check_drafter(corpus + "/type-4.gguf", "type 4");
  ggml_log_callback callback = nullptr;
  void *payload = nullptr;
  llama_log_get(&callback, &payload);
  CHECK(callback == static_cast<ggml_log_callback>(keep) && payload == &log);
}

// The program sets another log while one is looked at: it is looked at from the next time on, and stays.
void test_changed_log() {
  const auto fail = [] { CHECK(gguf_init_from_file("none.gguf", {true, nullptr}) == nullptr); };
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  int payload = 0;
  {
    const df2::LogCapture outer(llama_log_set);
    llama_log_set(ignore_log, &payload);
    fail();
    CHECK(outer.message().empty());
    {
      const df2::LogCapture inner(ggml_log_set);
      fail();
      CHECK(inner.message().find("failed to open GGUF file 'none.gguf'") == 0);
    }
    fail();
    CHECK(!outer.message().empty());
  }
  ggml_log_callback callback = nullptr;
  void *given = nullptr;
  llama_log_get(&callback, &given);
  CHECK(callback == ignore_log && given == &payload);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  llama_log_set(ignore_log, nullptr);
  test_files(argv[1]);
  test_paths();
  test_parts(argv[1]);
  test_log(argv[1]);
  test_changed_log();
  return report("corpus");
}
