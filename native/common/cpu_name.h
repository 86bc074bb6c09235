#pragma once

#include <string>

namespace df2 {

// The processor's model, in one line, as far as the operating system tells; else "".
std::string cpu_name();

}  // namespace df2
