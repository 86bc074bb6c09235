// The control groups that limit this process on Linux.
#pragma once

#include <string>
#include <vector>

namespace df2 {

// The folders of the process's groups that a controller ("cpu", "memory") may limit, each before the group around it,
// in both versions of the interface. Without one: empty. root: where /proc and /sys are, for tests.
std::vector<std::string> control_groups(const std::string &root, const std::string &controller);

}  // namespace df2
