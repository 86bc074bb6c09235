#include "common/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace df2 {

namespace {

std::vector<std::string> words_of(const std::string &line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), std::istream_iterator<std::string>()};
}

bool names(const std::string &controllers, const std::string &wanted) {
  std::istringstream parts(controllers);
  std::string part;
  while (std::getline(parts, part, ',')) {
    if (part == wanted) {
      return true;
    }
  }
  return false;
}

// A hierarchy of groups, as it is mounted.
struct Hierarchy {
  std::string point;
  std::string root;  // the group that is there
  bool is_unified;   // version 2
};

// From lines such as "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu".
std::vector<Hierarchy> mounted_hierarchies(const std::string &root, const std::string &controller) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = words_of(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4) {
      continue;
    }
    const bool is_unified = dash[1] == "cgroup2";
    if (is_unified || (dash[1] == "cgroup" && names(dash[3], controller))) {
      found.push_back({words[4], words[3], is_unified});
    }
  }
  return found;
}

// The process's group in a hierarchy, from lines such as "4:cpu,cpuacct:/group" or, in version 2, "0::/group".
std::string own_group(const std::string &root, const std::string &controller, bool is_unified) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_unified ? controllers.empty() : names(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return "/";
}

// What of the group's path is below the mount; "" if the group itself is mounted, or is not to be seen from here.
std::string path_below(const Hierarchy &hierarchy, const std::string &group) {
  const std::string top = hierarchy.root == "/" ? "" : hierarchy.root;
  const bool is_below = group.compare(0, top.size() + 1, top + "/") == 0 && group.find("/..") == std::string::npos;
  return is_below && group != "/" ? group.substr(top.size()) : "";
}

}  // namespace

std::vector<std::string> control_groups(const std::string &root, const std::string &controller) {
  std::vector<std::string> groups;
  for (const Hierarchy &hierarchy : mounted_hierarchies(root, controller)) {
    std::string path = path_below(hierarchy, own_group(root, controller, hierarchy.is_unified));
    for (bool is_top = false; !is_top; path.erase(std::min(path.size(), path.rfind('/')))) {
      is_top = path.empty();
      groups.push_back(root + hierarchy.point + path);
    }
  }
  return groups;
}

}  // namespace df2
