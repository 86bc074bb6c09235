#include "drafter/drafter_file.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "common/error.h"
#include "common/token_hash.h"

namespace df2 {

namespace {

constexpr uintptr_t kAlignment = 32;

}  // namespace

DrafterFile::DrafterFile(const std::string &path) : path_(path) {
  GgufFile file(path);
  params_ = read_drafter_params(file);
  file.read_data();
  map_ = file.map();
  weights_bytes_ = file.data_bytes();
  read_tensors(file);
  const std::vector<const char *> tokens = file.texts("tokenizer.ggml.tokens");
  for (size_t i = 0; i < tokens.size(); ++i) {
    token_hashes_.push_back(token_hash(tokens[i], static_cast<int32_t>(i)));
  }
}

void DrafterFile::fail(df2_status status, const std::string &problem) const {
  throw Error(status, format("'%s': %s", path_.c_str(), problem.c_str()));
}

void DrafterFile::read_tensors(const GgufFile &file) {
  std::map<std::string, const TensorInfo *> unknown;
  for (const TensorInfo &info : file.tensors()) {
    if (reinterpret_cast<uintptr_t>(info.data) % kAlignment != 0) {
      fail(DF2_EFORMAT, "tensor data is aligned to less than 32 bytes; convert the drafter again");
    }
    unknown[info.name] = &info;
  }
  for (const WeightRule &rule : weight_rules(params_)) {
    const auto found = unknown.find(rule.name);
    if (found == unknown.end() && !rule.is_optional) {
      fail(DF2_EFORMAT, format("tensor '%s' is missing; the file has %zu tensors (convert the drafter again)",
                               rule.name.c_str(), file.tensors().size()));
    }
    if (found != unknown.end()) {
      check(*found->second, rule);
      tensors_.push_back({*found->second, rule.n_dims, rule.use, rule.place});
      unknown.erase(found);
    }
  }
  // one that nobody asked for means the file is a variant this code would compute wrongly
  if (!unknown.empty()) {
    fail(DF2_EUNSUPPORTED,
         format("tensor '%s' is not part of a DFlash drafter this version knows", unknown.begin()->first.c_str()));
  }
}

void DrafterFile::check(const TensorInfo &info, const WeightRule &rule) const {
  const int64_t *ne = info.ne;
  if (ne[0] != rule.ne[0] || ne[1] != rule.ne[1] || ne[2] != rule.ne[2] || ne[3] != 1) {
    fail(
        DF2_EFORMAT,
        format("tensor '%s' has shape [%lld, %lld, %lld, %lld]; [%lld, %lld, %lld, 1] fits the other sizes in the file",
               info.name.c_str(), (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3],
               (long long)rule.ne[0], (long long)rule.ne[1], (long long)rule.ne[2]));
  }
  const bool is_matrix = rule.use == TensorUse::kProduct || rule.use == TensorUse::kLookUp;
  const ggml_type type = rule.use == TensorUse::kIds ? GGML_TYPE_I64 : GGML_TYPE_F32;
  if (!is_matrix && info.type != type) {
    fail(DF2_EFORMAT, format("tensor '%s' has type %s; it must be %s", info.name.c_str(), ggml_type_name(info.type),
                             ggml_type_name(type)));
  }
  if (rule.use == TensorUse::kIds) {
    check_ids(info);
  } else if (!is_matrix) {
    check_numbers(info);
  }
}

// Of matrices that would take as long as reading the whole file; the converter looks at all.
void DrafterFile::check_numbers(const TensorInfo &info) const {
  const auto *numbers = reinterpret_cast<const float *>(info.data);
  const size_t n = info.size_bytes / sizeof(float);
  if (!std::all_of(numbers, numbers + n, [](float number) { return std::isfinite(number); })) {
    fail(DF2_EFORMAT, format("tensor '%s' holds NaN or infinite values: the file is damaged, or its training diverged; "
                             "download or convert the drafter again",
                             info.name.c_str()));
  }
}

void DrafterFile::check_ids(const TensorInfo &info) const {
  const auto *ids = reinterpret_cast<const int64_t *>(info.data);
  for (int64_t i = 0; i < info.ne[0]; ++i) {
    if (ids[i] < 0 || ids[i] >= params_.n_vocab) {
      fail(DF2_EFORMAT, format("%s maps draft token %lld to %lld, outside the vocabulary of %d", info.name.c_str(),
                               (long long)i, (long long)ids[i], params_.n_vocab));
    }
  }
}

}  // namespace df2
