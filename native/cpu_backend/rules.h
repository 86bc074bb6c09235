// The rules as ggml sees them: one object that it asks about every node.
#pragma once

#include "cpu_backend/ggml_cpu_internals.h"

namespace df2 {

// What the buffer type answers for every node. Its work_size() is ggml's question while a graph is planned: there nodes
// are claimed for the rules that match, and others let go. Its compute_forward() does what was claimed.
ggml::cpu::tensor_traits *rule_table();

}  // namespace df2
