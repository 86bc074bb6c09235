// What memory there is, from files as Linux has them.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "check.h"
#include "common/memory_limit.h"
#include "cpu_backend/packed_buffer.h"
#include "ggml-cpp.h"

namespace {

// A folder with a /proc and a /sys.
class Root {
 public:
  Root() : path_(std::filesystem::temp_directory_path() / ("df2_memory_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Root() { std::filesystem::remove_all(path_); }

  void write(const std::string &name, const std::string &text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  uint64_t available() const { return df2::available_memory(path_.string()); }

 private:
  std::filesystem::path path_;
};

constexpr char kMounted[] = "31 23 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw\n";

void test_system() {
  const Root root;
  CHECK(root.available() == UINT64_MAX);
  root.write("proc/meminfo", "MemTotal:       100 kB\nMemFree:         10 kB\nMemAvailable:    60 kB\n");
  CHECK(root.available() == 60 * 1024);
}

void test_version_2() {
  const Root root;
  root.write("proc/meminfo", "MemAvailable:    60 kB\n");
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("proc/self/mountinfo", kMounted);
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "20000\n");
  CHECK(root.available() == 60 * 1024);
  root.write("sys/fs/cgroup/outer/memory.max", "50000\n");
  root.write("sys/fs/cgroup/outer/memory.current", "30000\n");
  root.write("sys/fs/cgroup/outer/memory.stat", "anon 12000\ninactive_file 5000\nactive_file 6000\n");
  CHECK(root.available() == 31000);
  root.write("sys/fs/cgroup/outer/inner/memory.max", "21000\n");
  CHECK(root.available() == 1000);
  root.write("sys/fs/cgroup/outer/inner/memory.max", "19000\n");
  CHECK(root.available() == 0);
}

// A container shows its own group as the topmost one, whatever the process's is called outside.
void test_container() {
  const Root root;
  root.write("proc/self/cgroup", "0::/docker/1234\n");
  root.write("proc/self/mountinfo", "31 23 0:26 /docker/1234 /sys/fs/cgroup rw,relatime - cgroup2 cgroup rw\n");
  root.write("sys/fs/cgroup/memory.max", "8000\n");
  root.write("sys/fs/cgroup/memory.current", "1000\n");
  CHECK(root.available() == 7000);
}

void test_version_1() {
  const Root root;
  root.write("proc/self/cgroup", "12:cpu,cpuacct:/a\n4:memory:/group\n0::/\n");
  root.write("proc/self/mountinfo", "32 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n");
  root.write("sys/fs/cgroup/memory/group/memory.limit_in_bytes", "9000\n");
  root.write("sys/fs/cgroup/memory/group/memory.usage_in_bytes", "5000\n");
  root.write("sys/fs/cgroup/memory/group/memory.stat", "cache 1\ntotal_inactive_file 300\ntotal_active_file 40\n");
  CHECK(root.available() == 4340);
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  CHECK(root.available() == 4340);
}

// Linux would promise more memory than there is, and end a process once it is used.
void test_packed_memory() {
  const uint64_t available = df2::available_memory();
  if (available == UINT64_MAX) {
    return;
  }
  const df2::PackedCount count;
  const ggml_backend_buffer_ptr some(ggml_backend_buft_alloc_buffer(df2::packed_buffer_type(), 8 << 20));
  CHECK(some != nullptr);
  CHECK(count.refused() == 0);
  const uint64_t too_much = available + (uint64_t{1} << 30);
  const ggml_backend_buffer_ptr none(ggml_backend_buft_alloc_buffer(df2::packed_buffer_type(), too_much));
  CHECK(none == nullptr);
  CHECK(count.refused() == too_much);
}

}  // namespace

int main() {
  test_system();
  test_version_2();
  test_container();
  test_version_1();
  test_packed_memory();
  return report("memory limit");
}
