// How a drafter file is loaded.
#pragma once

#include <memory>
#include <string>

#include "drafter/drafter.h"

namespace df2 {

// wants_kernels: computes on this library's kernels where they can be used, and makes them known to llama.cpp if nobody
// has. version: the DFlash version to insist on; 0: any. Throws DF2_EMISMATCH for another version, and what
// enable_kernels() and the constructors of DrafterFile and Drafter throw.
std::shared_ptr<const Drafter> load_drafter(const std::string &path, bool wants_kernels, int32_t version);

}  // namespace df2
