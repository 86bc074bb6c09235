#include "common/cpu_count.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace df2 {

int32_t physical_cores() {
  const auto all = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return all;
  }
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) {
      continue;
    }
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream siblings(topology + "thread_siblings_list");
    std::string core;
    if (!std::getline(siblings, core)) {
      core = std::to_string(cpu);
    }
    cores.insert(core);
  }
  return std::max(1, static_cast<int32_t>(cores.size()));
#else
  return all;
#endif
}

}  // namespace df2
