#include "common/cpu_count.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "common/control_groups.h"
#include "common/error.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace df2 {

namespace {

// A core is slow below this share of the fastest one's speed: the small cores of phones and laptops are at half of it
// or less, while cores of one kind differ by what their chips can be clocked at.
constexpr double kFastShare = 0.6;

std::optional<std::string> first_line(const std::string &path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? std::optional<std::string>(line) : std::nullopt;
}

// 0 if there is none.
int64_t number_in(const std::string &path) {
  const std::optional<std::string> line = first_line(path);
  return line ? std::strtoll(line->c_str(), nullptr, 10) : 0;
}

// Whether a list such as "0-3,8" names the CPU.
bool lists(const std::string &list, int32_t cpu) {
  std::istringstream parts(list);
  std::string part;
  while (std::getline(parts, part, ',')) {
    char *rest = nullptr;
    const long first = std::strtol(part.c_str(), &rest, 10);
    const long last = *rest == '-' ? std::strtol(rest + 1, nullptr, 10) : first;
    if (rest != part.c_str() && first <= cpu && cpu <= last) {
      return true;
    }
  }
  return false;
}

// -- cores -----------------------------------------------------------------------------------------------------------

struct Cpu {
  std::string core;  // the same for all hyper-threads of a core
  double speed;      // compares with others only; 0: unknown
};

Cpu read_cpu(const std::string &root, int32_t number) {
  const std::string folder = root + "/sys/devices/system/cpu/cpu" + std::to_string(number);
  std::optional<std::string> core = first_line(folder + "/topology/core_cpus_list");
  if (!core) {
    core = first_line(folder + "/topology/thread_siblings_list");
  }
  return {core.value_or(std::to_string(number)), static_cast<double>(number_in(folder + "/cpu_capacity"))};
}

// Where the scheduler makes no difference between CPUs, their highest frequencies may.
void use_frequencies(const std::string &root, std::map<int32_t, Cpu> *cpus) {
  const double first = cpus->begin()->second.speed;
  if (std::any_of(cpus->begin(), cpus->end(), [&](const auto &cpu) { return cpu.second.speed != first; })) {
    return;
  }
  for (auto &[number, cpu] : *cpus) {
    cpu.speed = static_cast<double>(
        number_in(root + "/sys/devices/system/cpu/cpu" + std::to_string(number) + "/cpufreq/cpuinfo_max_freq"));
  }
}

// Intel names the fast cores of its hybrid processors.
void use_names(const std::string &root, std::map<int32_t, Cpu> *cpus) {
  const std::optional<std::string> fast = first_line(root + "/sys/devices/cpu_core/cpus");
  if (fast && std::any_of(cpus->begin(), cpus->end(), [&](const auto &cpu) { return lists(*fast, cpu.first); })) {
    for (auto &[number, cpu] : *cpus) {
      cpu.speed = lists(*fast, number) ? 1.0 : 0.0;
    }
  }
}

struct Cores {
  int32_t n = 0;
  int32_t n_fast = 0;
};

Cores count_cores(const std::string &root, const std::vector<int32_t> &allowed) {
  std::map<int32_t, Cpu> cpus;
  for (const int32_t number : allowed) {
    cpus[number] = read_cpu(root, number);
  }
  if (cpus.empty()) {
    return {1, 1};
  }
  use_frequencies(root, &cpus);
  use_names(root, &cpus);
  std::map<std::string, double> speeds;
  double fastest = 0.0;
  for (const auto &[number, cpu] : cpus) {
    speeds[cpu.core] = std::max(speeds[cpu.core], cpu.speed);
    fastest = std::max(fastest, cpu.speed);
  }
  const auto is_fast = [&](const auto &core) { return core.second >= kFastShare * fastest; };
  return {static_cast<int32_t>(speeds.size()),
          static_cast<int32_t>(std::count_if(speeds.begin(), speeds.end(), is_fast))};
}

// -- quota -----------------------------------------------------------------------------------------------------------

// CPUs' worth of time that a group of processes gets; 0: as much as there is. In both versions of the interface.
double quota_of(const std::string &group) {
  int64_t quota = number_in(group + "/cpu.cfs_quota_us");
  int64_t period = number_in(group + "/cpu.cfs_period_us");
  const std::optional<std::string> both = first_line(group + "/cpu.max");
  if (both) {  // "max 100000" without a limit, which is 0 as a number
    char *rest = nullptr;
    quota = std::strtoll(both->c_str(), &rest, 10);
    period = std::strtoll(rest, nullptr, 10);
  }
  return quota > 0 && period > 0 ? static_cast<double>(quota) / static_cast<double>(period) : 0.0;
}

// The smallest quota of the process's groups and those around them; 0: none.
double find_quota(const std::string &root) {
  double smallest = 0.0;
  for (const std::string &group : control_groups(root, "cpu")) {
    const double quota = quota_of(group);
    smallest = quota > 0.0 && (smallest == 0.0 || quota < smallest) ? quota : smallest;
  }
  return smallest;
}

// --------------------------------------------------------------------------------------------------------------------

ThreadCount describe(const Cores &cores, double quota) {
  ThreadCount count = {std::max(1, cores.n_fast), format("%d core%s", cores.n, cores.n == 1 ? "" : "s")};
  if (cores.n_fast < cores.n) {
    count.reason += format(", of which %d fast", cores.n_fast);
  }
  if (quota > 0.0) {
    const double most = std::min(quota, static_cast<double>(count.n));
    count.n = static_cast<int32_t>(most) + (most > static_cast<int32_t>(most) ? 1 : 0);
    count.reason += format("; CPU quota %.1f", quota);
  }
  return count;
}

#if defined(__linux__)
std::vector<int32_t> allowed_cpus() {
  cpu_set_t sets[16];  // 16,384 CPUs: a kernel refuses what cannot hold all of its own
  std::vector<int32_t> allowed;
  if (sched_getaffinity(0, sizeof(sets), sets) == 0) {
    for (int cpu = 0; cpu < 16 * CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET_S(cpu, sizeof(sets), sets)) {
        allowed.push_back(cpu);
      }
    }
  }
  return allowed;
}
#elif defined(__APPLE__)
int32_t system_number(const char *name) {
  int32_t value = 0;
  size_t size = sizeof(value);
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? value : 0;
}
#endif

}  // namespace

ThreadCount count_linux_threads(const std::string &root, const std::vector<int32_t> &allowed) {
  return describe(count_cores(root, allowed), find_quota(root));
}

ThreadCount default_threads() {
#if defined(__linux__)
  const std::vector<int32_t> allowed = allowed_cpus();
  if (!allowed.empty()) {
    return count_linux_threads("", allowed);
  }
#elif defined(__APPLE__)
  const int32_t n = system_number("hw.physicalcpu");
  const int32_t n_fast = system_number("hw.perflevel0.physicalcpu");  // none where all are alike
  if (n > 0) {
    return describe({n, n_fast > 0 ? std::min(n, n_fast) : n}, 0.0);
  }
#endif
  const auto n_cpus = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  return describe({n_cpus, n_cpus}, 0.0);
}

}  // namespace df2
