#include "target/architectures.h"

#include "llama.h"

namespace df2 {

namespace {

// From src/models/ of llama.cpp 0c1e570 (llama-cpp-python 0.3.36), to be read again for another version: the shape of
// what is named l_out, and the graphs that set t_layer_inp, under the names of src/llama-arch.cpp. Architectures that
// are not here name rows of their residual stream, [n_embd, n_tokens], and record nothing.
//
// gemma3n keeps several streams, of which every layer reads and predicts the first (altup, index 0). glm5-next's four
// are averaged before its head, as llama.cpp averages deepseek4's for drafters. hy_v4's head weighs them in a way of
// its own, so their mean would be a guess. qwen4exp is left out of those that record: llama.cpp asserts one row a
// token, and it has several.
struct Row {
  const char *architecture;
  TapTraits traits;
};

constexpr TapTraits kRecords = {TapForm::kRow, nullptr, true, false};
constexpr TapTraits kRecordsAll = {TapForm::kRow, nullptr, true, true};
constexpr const char *kBlockOutputs = "its l_out nodes are outputs of blocks, without the residual stream";
constexpr const char *kWeighedStreams = "it keeps several residual streams that only its head knows how to join";

constexpr Row kRows[] = {
    {"bailingmoe3", kRecords},
    {"deepseek4", kRecordsAll},
    {"gemma3n", {TapForm::kFirstStream, nullptr, false, false}},
    {"gemma4", kRecords},
    {"glm5-next", {TapForm::kStreamMean, nullptr, false, false}},
    {"gpt-oss", kRecords},
    {"hunyuan-dense", kRecords},
    {"hunyuan_vl", kRecords},
    {"hy_v4", {TapForm::kRow, kWeighedStreams, false, false}},
    {"lfm2", kRecords},
    {"lfm2moe", kRecords},
    {"llama", kRecords},
    {"llama-embed", kRecords},
    {"mimo2", kRecordsAll},
    {"minimax-01", kRecords},
    {"minimax-m2", kRecords},
    {"muse-glimmer", kRecords},
    {"nanbeige", kRecords},
    {"nemotron_h", {TapForm::kRow, kBlockOutputs, true, true}},
    {"nemotron_h_moe", {TapForm::kRow, kBlockOutputs, true, true}},
    {"qwen3", kRecords},
    {"qwen35", kRecords},
    {"qwen35moe", kRecords},
    {"qwen3moe", kRecords},
    {"qwen3next", kRecords},
};

}  // namespace

std::string architecture_of(const llama_model *model) {
  char name[128] = "";
  llama_model_meta_val_str(model, "general.architecture", name, sizeof(name));
  return name;
}

TapTraits tap_traits(const std::string &architecture) {
  for (const Row &row : kRows) {
    if (architecture == row.architecture) {
      return row.traits;
    }
  }
  return {};
}

// From llama_memory_hybrid_idx::seq_cp and llama_kv_cache_dsv4::seq_cp, and, of the delta nets,
// llm_arch_supports_rs_rollback.
GoesBack goes_back(const std::string &architecture) {
  for (const char *delta_net : {"qwen35", "qwen35moe", "kimi-k3", "bailingmoe3"}) {
    if (architecture == delta_net) {
      return GoesBack::kByKeptInputs;
    }
  }
  if (architecture == "deepseek4") {
    return GoesBack::kBySnapshots;
  }
  return architecture == "glm5-next" || architecture == "qwen4exp" ? GoesBack::kBestBySnapshots : GoesBack::kByMark;
}

bool convolutions_know_before(const std::string &architecture) {
  return architecture != "bailingmoe3";
}

}  // namespace df2
