// How many threads are right on machines of many kinds, each made of files that look like its /proc and /sys.
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "check.h"
#include "common/cpu_count.h"
#include "dflash2.h"

namespace {

namespace fs = std::filesystem;

constexpr char kUnified[] = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n";
constexpr char kVersion1[] =
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

class Machine {
 public:
  Machine() : root_(fs::temp_directory_path() / ("df2_machine_" + std::to_string(::getpid()))) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~Machine() { fs::remove_all(root_); }

  Machine &file(const std::string &path, const std::string &text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return *this;
  }

  Machine &cpu(const std::string &path, int32_t number, const std::string &text) {
    return file("sys/devices/system/cpu/cpu" + std::to_string(number) + "/" + path, text + "\n");
  }

  void expect(int32_t n_cpus, int32_t n, const std::string &reason) const {
    std::vector<int32_t> allowed(static_cast<size_t>(n_cpus));
    std::iota(allowed.begin(), allowed.end(), 0);
    expect_on(allowed, n, reason);
  }

  void expect_on(const std::vector<int32_t> &allowed, int32_t n, const std::string &reason) const {
    const df2::ThreadCount found = df2::count_linux_threads(root_.string(), allowed);
    test_check(found.n == n && found.reason == reason, "%d: %s, not %d: %s", found.n, found.reason.c_str(), n,
               reason.c_str());
  }

 private:
  fs::path root_;
};

void test_cores() {
  test_case("nothing is known");
  Machine().expect(4, 4, "4 cores");
  Machine().expect(1, 1, "1 core");
  test_case("hyper-threads");
  Machine machine;
  for (int32_t i = 0; i < 8; ++i) {
    const std::string core = std::to_string(i % 4) + "," + std::to_string(i % 4 + 4);
    machine.cpu(i < 6 ? "topology/core_cpus_list" : "topology/thread_siblings_list", i, core);
    machine.cpu("cpufreq/cpuinfo_max_freq", i, i % 4 == 0 ? "5700000" : "5100000");
  }
  machine.expect(8, 4, "4 cores");
  machine.expect_on({0, 1, 4}, 2, "2 cores");
  machine.expect_on({7}, 1, "1 core");
}

void test_fast_cores() {
  test_case("a phone: capacities of 1024, 870 and 325");
  Machine phone;
  for (int32_t i = 0; i < 8; ++i) {
    phone.cpu("cpu_capacity", i, i < 3 ? "325" : i < 7 ? "870" : "1024");
    phone.cpu("cpufreq/cpuinfo_max_freq", i, "2000000");  // the capacity knows better
  }
  phone.expect(8, 5, "8 cores, of which 5 fast");
  phone.expect_on({0, 1, 2}, 3, "3 cores");
  test_case("frequencies alone");
  Machine laptop;
  for (int32_t i = 0; i < 4; ++i) {
    laptop.cpu("cpu_capacity", i, "1024");
    laptop.cpu("cpufreq/cpuinfo_max_freq", i, i < 1 ? "4000000" : "2000000");
  }
  laptop.expect(4, 1, "4 cores, of which 1 fast");
  test_case("the fast cores are named, and have hyper-threads");
  Machine hybrid;
  hybrid.file("sys/devices/cpu_core/cpus", "0-3,12-13\n").file("sys/devices/cpu_atom/cpus", "4-11\n");
  for (int32_t i = 0; i < 14; ++i) {
    const int32_t first = i - i % 2;
    const bool is_fast = i < 4 || i >= 12;
    hybrid.cpu("topology/core_cpus_list", i,
               is_fast ? std::to_string(first) + "-" + std::to_string(first + 1) : std::to_string(i));
    hybrid.cpu("cpufreq/cpuinfo_max_freq", i, is_fast ? "5000000" : "3900000");
  }
  hybrid.expect(14, 3, "11 cores, of which 3 fast");
  hybrid.expect_on({4, 5, 6}, 3, "3 cores");
}

void test_quotas() {
  test_case("version 2: the own group's");
  Machine own;
  own.file("proc/self/mountinfo", kUnified).file("proc/self/cgroup", "0::/a/b\n");
  own.file("sys/fs/cgroup/a/cpu.max", "max 100000\n").file("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  own.expect(8, 3, "8 cores; CPU quota 2.5");
  own.expect(2, 2, "2 cores; CPU quota 2.5");
  test_case("version 2: that of a group around it");
  own.file("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  own.expect(8, 2, "8 cores; CPU quota 1.5");
  test_case("version 2: a container that sees its own group as the root");
  Machine inside;
  inside.file("proc/self/mountinfo", kUnified).file("proc/self/cgroup", "0::/\n");
  inside.file("sys/fs/cgroup/cpu.max", "20000 100000\n");
  inside.expect(8, 1, "8 cores; CPU quota 0.2");
  inside.file("proc/self/cgroup", "0::/../other\n");
  inside.expect(8, 1, "8 cores; CPU quota 0.2");
  test_case("version 2: no limit, or none that is one");
  for (const char *text : {"max 100000\n", "max\n", "", "0 0\n", "-5 100000\n"}) {
    inside.file("sys/fs/cgroup/cpu.max", text);
    inside.expect(8, 8, "8 cores");
  }
  test_case("version 1");
  Machine old;
  old.file("proc/self/mountinfo", kVersion1).file("proc/self/cgroup", "3:cpuset:/c\n2:cpu,cpuacct:/a/b\n0::/\n");
  const std::string group = "sys/fs/cgroup/cpu,cpuacct/a";
  old.file(group + "/cpu.cfs_quota_us", "400000\n").file(group + "/cpu.cfs_period_us", "100000\n");
  old.file(group + "/b/cpu.cfs_quota_us", "-1\n").file(group + "/b/cpu.cfs_period_us", "100000\n");
  old.expect(8, 4, "8 cores; CPU quota 4.0");
  test_case("version 1: a container's group, mounted without its parents");
  Machine bound;
  bound.file("proc/self/mountinfo", "33 31 0:30 /docker/1 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  bound.file("proc/self/cgroup", "2:cpu:/docker/1/sub\n");
  bound.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n").file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "25000\n");
  bound.expect(8, 2, "8 cores; CPU quota 2.0");
  test_case("fast cores and a quota");
  for (int32_t i = 0; i < 8; ++i) {
    bound.cpu("cpu_capacity", i, i < 4 ? "1024" : "400");
  }
  bound.expect(8, 2, "8 cores, of which 4 fast; CPU quota 2.0");
}

// A process that may use one CPU computes with one thread.
void test_this_machine() {
  test_case("this machine");
  const char *reason = nullptr;
  CHECK(df2_threads_default(&reason) >= 1 && reason != nullptr && *reason != '\0');
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
  CHECK(df2_threads_default(nullptr) == 1);
}

}  // namespace

int main() {
  test_cores();
  test_fast_cores();
  test_quotas();
  test_this_machine();
  return report("cpu_count");
}
