#include "common/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "common/control_groups.h"

namespace df2 {

namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The first number of a file; none for "max", or without the file.
std::optional<uint64_t> number_in(const std::string &path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional<uint64_t>(number) : std::nullopt;
}

// The number after a word that begins a line.
std::optional<uint64_t> number_after(const std::string &path, const std::string &wanted) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream stream(line);
    std::string word;
    uint64_t number = 0;
    if (stream >> word >> number && word == wanted) {
      return number;
    }
  }
  return std::nullopt;
}

uint64_t system_memory(const std::string &root) {
  const std::optional<uint64_t> kilobytes = number_after(root + "/proc/meminfo", "MemAvailable:");
  return kilobytes ? *kilobytes * 1024 : kUnlimited;
}

// The two versions of the interface: names of files and of what is in them.
struct Version {
  const char *limit;
  const char *usage;
  const char *cached[2];
};
constexpr Version kVersions[] = {
    {"/memory.max", "/memory.current", {"inactive_file", "active_file"}},
    {"/memory.limit_in_bytes", "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}}};

// What the limit of one group leaves.
uint64_t left_in(const std::string &group, const Version &version) {
  const std::optional<uint64_t> limit = number_in(group + version.limit);
  const std::optional<uint64_t> usage = number_in(group + version.usage);
  if (!limit || !usage) {
    return kUnlimited;
  }
  uint64_t cached = 0;
  for (const char *kind : version.cached) {
    cached += number_after(group + "/memory.stat", kind).value_or(0);
  }
  const uint64_t used = *usage - std::min(*usage, cached);
  return *limit - std::min(*limit, used);
}

}  // namespace

uint64_t available_memory(const std::string &root) {
  uint64_t least = system_memory(root);
  for (const std::string &group : control_groups(root, "memory")) {
    for (const Version &version : kVersions) {
      least = std::min(least, left_in(group, version));
    }
  }
  return least;
}

}  // namespace df2
