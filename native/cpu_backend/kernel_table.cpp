#include "cpu_backend/kernel_table.h"

#include <cstring>

namespace df2 {

namespace {

// By ggml type; DF2_QMM_N_TYPES: there are no kernels.
const std::array<df2_qmm_type, GGML_TYPE_COUNT> &qmm_types() {
  static const auto types = [] {
    std::array<df2_qmm_type, GGML_TYPE_COUNT> found = {};
    for (size_t i = 0; i < found.size(); ++i) {
      const char *name = ggml_type_name(static_cast<ggml_type>(i));
      found[i] = name != nullptr ? df2_qmm_type_of_name(name) : DF2_QMM_N_TYPES;
    }
    return found;
  }();
  return types;
}

KernelTable &table_in_use() {
  static auto *table = new KernelTable();  // never destroyed, as the rules that read it
  return *table;
}

}  // namespace

const df2_qmm_kernel *KernelTable::matmul_of(ggml_type type) const {
  const df2_qmm_type known = qmm_types()[type];
  return known != DF2_QMM_N_TYPES ? matmul[known] : nullptr;
}

KernelTable choose_kernels(uint32_t cpu_features, bool with_reference) {
  // where there is only the reference, ggml's own are better
  const auto unless_reference = [&](const auto *kernel) {
    return with_reference || std::strcmp(kernel->isa, "ref") != 0 ? kernel : nullptr;
  };
  KernelTable table;
  for (size_t i = 0; i < table.matmul.size(); ++i) {
    table.matmul[i] = unless_reference(df2_qmm_find(static_cast<df2_qmm_type>(i), cpu_features));
  }
  table.attention = unless_reference(df2_attention_find(cpu_features));
  table.delta_net = unless_reference(df2_delta_net_find(cpu_features));
  table.ssm_conv = unless_reference(df2_ssm_conv_find(cpu_features));
  return table;
}

const KernelTable &kernels_in_use() {
  return table_in_use();
}

void use_kernels(const KernelTable &table) {
  table_in_use() = table;
}

}  // namespace df2
