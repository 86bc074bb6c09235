#include "target/target_parts.h"

#include <climits>
#include <cstdint>
#include <filesystem>

#include "common/error.h"
#include "llama.h"

namespace df2 {

namespace {

constexpr int32_t kMostParts = UINT16_MAX;

struct PartNumber {
  int32_t number;  // from 0
  int32_t count;
};

PartNumber part_number(const GgufFile &file) {
  const PartNumber part = {file.integer("split.no", 0, kMostParts, 0), file.integer("split.count", 0, kMostParts, 1)};
  return part.count > 1 ? part : PartNumber{0, 1};
}

// Empty if the file's name is not that of the part it says it is.
std::string part_path(const std::string &path, const PartNumber &here, int32_t wanted) {
  char prefix[PATH_MAX] = "";
  char other[PATH_MAX] = "";
  if (llama_split_prefix(prefix, sizeof(prefix), path.c_str(), here.number, here.count) <= 0 ||
      llama_split_path(other, sizeof(other), prefix, wanted, here.count) <= 0) {
    return "";
  }
  return other;
}

}  // namespace

std::vector<std::string> other_parts(const GgufFile &file) {
  const PartNumber here = part_number(file);
  const std::string &path = file.path();
  const std::string first = part_path(path, here, 0);
  if (here.number != 0) {
    const std::string named =
        first.empty() ? format("the one whose name ends in -00001-of-%05d.gguf", here.count) : first;
    throw Error(DF2_EFORMAT, format("'%s': part %d of %d of a split model; give the first part, %s", path.c_str(),
                                    here.number + 1, here.count, named.c_str()));
  }
  if (here.count > 1 && first.empty()) {
    throw Error(DF2_EFORMAT, format("'%s': one of %d parts of a model, but its name does not end in "
                                    "-00001-of-%05d.gguf, which would name the others; restore the names, or merge the "
                                    "parts into one file (llama-gguf-split --merge)",
                                    path.c_str(), here.count, here.count));
  }
  std::vector<std::string> others;
  for (int32_t i = 1; i < here.count; ++i) {
    others.push_back(part_path(path, here, i));
    if (!std::filesystem::exists(others.back())) {
      throw Error(DF2_EIO, format("'%s': part %d of %d, %s, is missing; download all parts into one folder",
                                  path.c_str(), i + 1, here.count, others.back().c_str()));
    }
    const PartNumber other = part_number(GgufFile(others.back()));
    if (other.number != i || other.count != here.count) {
      throw Error(DF2_EFORMAT, format("'%s': not part %d of %d, as its name says; download it again",
                                      others.back().c_str(), i + 1, here.count));
    }
  }
  return others;
}

}  // namespace df2
