#include "target/tap_source.h"

#include <algorithm>
#include <cstring>

#include "common/error.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/rule_taps.h"
#include "cpu_backend/stock.h"
#include "target/architectures.h"
#include "target/llama_internals.h"
#include "target/target_graph.h"

namespace df2 {

namespace {

// Ends a recording however the decode ends.
class Recording {
 public:
  Recording(TapRecorder *recorder, float *features, int64_t n_rows) : recorder_(recorder) {
    recorder_->begin(features, n_rows);
  }
  ~Recording() { recorder_->end(); }
  Recording(const Recording &) = delete;
  Recording &operator=(const Recording &) = delete;

  void check(const char *problem) const {
    if (!recorder_->is_complete()) {
      throw Error(DF2_EBACKEND, problem);
    }
  }

 private:
  TapRecorder *recorder_;
};

class RuleTaps final : public TapSource {
 public:
  RuleTaps(const TapRequest &request, TapForm form) { recorder_.select(request.layers, request.n_embd, form); }

  void read(float *features, int64_t n_rows, const std::function<void()> &decode) override {
    const Recording recording(&recorder_, features, n_rows);
    {
      const TapScope scope(&recorder_);
      decode();
    }
    recording.check(
        "the hidden states of a tapped layer were not computed on the CPU; load the target with "
        "n_gpu_layers = 0");
  }

 private:
  TapRecorder recorder_;
};

class CallbackTaps final : public TapSource {
 public:
  CallbackTaps(const TapRequest &request, TapForm form) : taps_(*request.taps), recorder_(taps_.recorder) {
    if (taps_.is_read.exchange(true)) {
      throw Error(DF2_EINVAL, "another session reads hidden states by this df2_taps; each context needs its own");
    }
    recorder_.select(request.layers, request.n_embd, form);
  }
  ~CallbackTaps() override {
    recorder_.select({}, 0, TapForm::kRow);
    taps_.is_read = false;
  }

  void read(float *features, int64_t n_rows, const std::function<void()> &decode) override {
    const Recording recording(&recorder_, features, n_rows);
    decode();
    recording.check(
        "llama.cpp did not show the hidden states of every tapped layer; is the df2_taps object the context's "
        "cb_eval_user_data, with df2_taps_eval as cb_eval?");
  }

 private:
  df2_taps &taps_;
  TapRecorder &recorder_;
};

class LayerInputTaps final : public TapSource {
 public:
  explicit LayerInputTaps(const TapRequest &request)
      : context_(request.context), layers_(request.layers), n_embd_(request.n_embd) {
    enable(true);
  }
  ~LayerInputTaps() override { enable(false); }

  void read(float *features, int64_t n_rows, const std::function<void()> &decode) override {
    decode();
    const int64_t width = n_embd_ * static_cast<int64_t>(layers_.size());
    for (size_t tap = 0; tap < layers_.size(); ++tap) {
      const float *rows = llama_get_embeddings_layer_inp(context_, static_cast<uint32_t>(layers_[tap]));
      for (int64_t i = 0; i < n_rows; ++i) {
        std::memcpy(features + i * width + static_cast<int64_t>(tap) * n_embd_, rows + i * n_embd_,
                    static_cast<size_t>(n_embd_) * sizeof(float));
      }
    }
  }

 private:
  void enable(bool enabled) {
    for (const int32_t layer : layers_) {
      llama_set_embeddings_layer_inp(context_, static_cast<uint32_t>(layer), enabled);
    }
  }

  llama_context *context_;
  std::vector<int32_t> layers_;
  int64_t n_embd_;
};

// Why a layer's output cannot be read from the graph of n_tokens tokens, one of which asks for logits; empty if it can.
std::string output_problem(ggml_cgraph *graph, int32_t n_tokens, const TapRequest &request, const TapTraits &traits,
                           int32_t layer) {
  const std::string name = format("l_out-%d", layer - 1);
  const std::vector<ggml_tensor *> nodes = find_nodes(graph, name);
  if (nodes.empty()) {
    return format("has no node %s", name.c_str());
  }
  if (nodes.size() > 1) {
    return format("has %zu nodes %s", nodes.size(), name.c_str());
  }
  const ggml_tensor &node = *nodes[0];
  const int64_t n_rows = tapped_rows(&node, traits.form, request.n_embd);
  if (n_rows != n_tokens && (layer != request.n_layer || n_rows != 1)) {
    return format("gives %s as [%lld, %lld, %lld, %lld] of %s, where rows of %lld numbers are known", name.c_str(),
                  static_cast<long long>(node.ne[0]), static_cast<long long>(node.ne[1]),
                  static_cast<long long>(node.ne[2]), static_cast<long long>(node.ne[3]), ggml_type_name(node.type),
                  static_cast<long long>(request.n_embd));
  }
  return "";
}

// Of the first layer whose output cannot be read.
std::string outputs_problem(const ProbedGraph &probed, const TapRequest &request, const TapTraits &traits) {
  for (const int32_t layer : request.layers) {
    const std::string problem = output_problem(probed.graph, probed.n_tokens, request, traits, layer);
    if (!problem.empty()) {
      return problem;
    }
  }
  return traits.problem != nullptr ? traits.problem : "";
}

bool can_use_rule(const ProbedGraph &probed, const TapRequest &request, TapForm form) {
  // a reserved graph does not tell where its nodes will be computed, only where what they read is
  return request.may_use_rules && is_all_on_cpu(probed.graph) &&
         std::all_of(request.layers.begin(), request.layers.end(), [&](int32_t layer) {
           const ggml_tensor *output = find_nodes(probed.graph, format("l_out-%d", layer - 1))[0];
           return form == TapForm::kStreamMean ? has_stream_reader(probed.graph, output)
                                               : can_compute_tapped(output, form);
         });
}

bool can_use_inputs(const TapRequest &request, const TapTraits &traits) {
  // the state after the last layer is not the input of any
  const bool taps_last = std::count(request.layers.begin(), request.layers.end(), request.n_layer) != 0;
  return traits.records_inputs && (traits.records_last || !taps_last);
}

// Why a layer's output that is where it should be is not read by a rule.
std::string why_no_rules(const TapRequest &request) {
  const char *note = kernel_status().note;
  if (request.may_use_rules) {
    return "not used for it, or not for all layers of this context";
  }
  return *note != '\0' ? format("not in use (%s)", note) : std::string("off for this target");
}

}  // namespace

bool show_to_taps(ggml_tensor *tensor, bool ask, void *taps) noexcept {
  auto *given = static_cast<df2_taps *>(taps);
  if (ask && given->is_stock) {
    leave_to_ggml(tensor);
  }
  return given->recorder.on_tensor(tensor, ask);
}

std::unique_ptr<TapSource> make_tap_source(const TapRequest &request) {
  const TapTraits traits = tap_traits(request.architecture);
  const ProbedGraph probed = probe_graph(request.context);
  const std::string problem = outputs_problem(probed, request, traits);
  if (problem.empty() && can_use_rule(probed, request, traits.form)) {
    return std::make_unique<RuleTaps>(request, traits.form);
  }
  if (problem.empty() && request.taps != nullptr) {
    return std::make_unique<CallbackTaps>(request, traits.form);
  }
  if (can_use_inputs(request, traits)) {
    return std::make_unique<LayerInputTaps>(request);
  }
  if (!problem.empty()) {
    throw Error(DF2_EUNSUPPORTED, format("the hidden states of architecture '%s' cannot be read: it %s",
                                         request.architecture.c_str(), problem.c_str()));
  }
  throw Error(DF2_EUNSUPPORTED,
              format("the hidden states of architecture '%s' cannot be read from this context: this library's kernels, "
                     "which would, are %s; enable them, load the model with pydflash2.load or df2_target_open, or "
                     "create the context with df2_taps_eval as cb_eval",
                     request.architecture.c_str(), why_no_rules(request).c_str()));
}

}  // namespace df2
