#pragma once

#include <cstdint>

namespace df2 {

// Physical cores this process may run on; at least 1. Hyper-threads share the vector units that inference saturates.
int32_t physical_cores();

}  // namespace df2
