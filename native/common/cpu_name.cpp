#include "common/cpu_name.h"

#include <fstream>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace df2 {

#if defined(__APPLE__)

std::string cpu_name() {
  char name[256] = "";
  size_t size = sizeof(name) - 1;
  return sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0 ? name : "";
}

#else

// Of the first processor in the list: its name on x86, its numbers on Arm.
std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string name;
  std::string line;
  while (std::getline(info, line) && !line.empty()) {
    for (const char *key : {"model name", "CPU implementer", "CPU part", "CPU variant"}) {
      const size_t value = line.find(": ");
      if (line.rfind(key, 0) == 0 && value != std::string::npos) {
        name += (name.empty() ? "" : " ") + line.substr(value + 2);
      }
    }
  }
  return name;
}

#endif

}  // namespace df2
