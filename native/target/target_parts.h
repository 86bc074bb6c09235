// Models that llama-gguf-split has split into files.
#pragma once

#include <string>
#include <vector>

#include "common/gguf_file.h"

namespace df2 {

// The other parts of the model whose first part this is; none if it is whole. Throws DF2_EFORMAT for another part than
// the first, names that do not lead to the others, and parts of another model; DF2_EIO for parts that are missing.
std::vector<std::string> other_parts(const GgufFile &file);

}  // namespace df2
