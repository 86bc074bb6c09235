#include "target/target_open.h"

#include <algorithm>
#include <limits>
#include <map>

#include "common/cpu_count.h"
#include "common/error.h"
#include "common/gguf_file.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/simulated_memory.h"
#include "cpu_backend/stock.h"
#include "target/architectures.h"
#include "target/llama_internals.h"
#include "target/load_watch.h"
#include "target/target.h"
#include "target/target_graph.h"
#include "target/target_memory.h"
#include "target/target_parts.h"

namespace df2 {

namespace {

constexpr int32_t kDefaultContext = 4096;
constexpr int32_t kContextStep = 256;  // llama.cpp rounds a context's length up to a multiple
constexpr int32_t kDefaultBatch = 512;
constexpr int32_t kMaxThreads = 512;  // ggml's own limit

bool ends_with(const std::string &text, const std::string &ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

// The types ggml's CPU back end computes with, by the kind of weight.
void check_weight_type(const std::string &path, const TensorInfo &tensor) {
  const bool is_float = tensor.type == GGML_TYPE_F32 || tensor.type == GGML_TYPE_F16 || tensor.type == GGML_TYPE_BF16;
  const bool is_matrix_type =
      is_float || (ggml_is_quantized(tensor.type) && ggml_get_type_traits_cpu(tensor.type)->vec_dot != nullptr);
  const bool is_usable = ends_with(tensor.name, "norm.weight") ? tensor.type == GGML_TYPE_F32
                                                               : !ends_with(tensor.name, ".weight") || is_matrix_type;
  if (!is_usable) {
    throw Error(DF2_EFORMAT, format("'%s': tensor '%s' has type %s, which llama.cpp cannot use there; the file is "
                                    "damaged",
                                    path.c_str(), tensor.name.c_str(), ggml_type_name(tensor.type)));
  }
}

void check_weight_types(const GgufFile &file) {
  for (const TensorInfo &tensor : file.tensors()) {
    check_weight_type(file.path(), tensor);
  }
}

// GGUF files that go with a model.
void check_is_model(const GgufFile &file, const std::string &architecture) {
  static const std::map<std::string, const char *> kOthers = {
      {"adapter", "a LoRA adapter"},
      {"imatrix", "an importance matrix"},
      {"mmproj", "a vision or audio projector"},
      {"clip", "a vision or audio projector"},
      {"controlvector", "a control vector"},
  };
  for (const std::string &kind : {file.text("general.type", "model"), architecture}) {
    const auto found = kOthers.find(kind);
    if (found != kOthers.end()) {
      throw Error(DF2_EFORMAT, format("'%s' is %s, not a model; give the file of the model it belongs to",
                                      file.path().c_str(), found->second));
    }
  }
  if (architecture == "dflash") {
    throw Error(DF2_EFORMAT, format("'%s' is a drafter, not a target; swap the two files", file.path().c_str()));
  }
}

// What llama.cpp divides by (other architectures' files may have zeros there), and how often it repeats some nodes.
void check_divisors(const GgufFile &file, const std::string &architecture) {
  static const std::map<std::string, const char *> kDivisors = {
      {"deepseek4", ".attention.output_group_count"}, {"minimax-01", ".full_attention_interval"},
      {"qwen35", ".full_attention_interval"},         {"qwen35moe", ".full_attention_interval"},
      {"qwen3next", ".full_attention_interval"},
  };
  const auto divisor = kDivisors.find(architecture);
  if (divisor != kDivisors.end() && file.has(architecture + divisor->second)) {
    file.integer(architecture + divisor->second, 1, 4096);
  }
  const std::string repeats = architecture + ".hyper_connection.sinkhorn_iterations";
  if (file.has(repeats)) {
    file.integer(repeats, 0, 4096);
  }
}

// llama.cpp aborts rather than fails on files whose numbers contradict each other, so the plainest are tested first.
// Returns whether the file can be mapped.
bool check_target_file(const std::string &path) {
  const GgufFile file(path);
  const std::vector<std::string> others = other_parts(file);
  const std::string architecture = file.text("general.architecture");
  check_is_model(file, architecture);
  // the first part of a split model may hold the header alone
  if (file.tensors().empty() && !file.has("split.count")) {
    throw Error(DF2_EFORMAT, format("'%s' holds no tensors (only a vocabulary?)", path.c_str()));
  }
  check_weight_types(file);
  for (const std::string &other : others) {
    check_weight_types(GgufFile(other));
  }
  for (const char *epsilon : {".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon"}) {
    if (file.number(architecture + epsilon, 0.0f) < 0.0f) {
      throw Error(DF2_EFORMAT, format("'%s': %s%s must not be negative", path.c_str(), architecture.c_str(), epsilon));
    }
  }
  file.integer(architecture + ".block_count", 1, 4096);
  file.integer(architecture + ".embedding_length", 1, 1 << 20);
  file.integer(architecture + ".context_length", 1, 1 << 30);
  check_divisors(file, architecture);
  if (file.texts("tokenizer.ggml.tokens").empty()) {
    throw Error(DF2_EFORMAT, format("'%s' has an empty tokenizer", path.c_str()));
  }
  return file.map()->is_mapped();
}

// A model cannot be used with packed weights.
struct PackedRefused {
  std::string reason;
  bool is_out_of_memory;
};

// What the call gives; null also if ggml would have ended the process. A guard then has its message.
template <typename Call>
auto null_if_it_throws(const Call &call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception &) {
    return nullptr;
  }
}

[[noreturn]] void fail(df2_status status, const LoadWatch &watch, const std::string &what, const std::string &path) {
  const char *remedy = status == DF2_EFORMAT
                           ? "; the file is damaged, or made for another version of llama.cpp than the one in use"
                           : "";
  throw Error(status,
              format("llama.cpp cannot %s '%s' (%s)%s", what.c_str(), path.c_str(), watch.reason().c_str(), remedy));
}

void load_model(const std::string &path, const LoadWatch &watch, OwnContext *own) {
  // Only the CPU, which also computes the drafter with the head and embeddings. With other devices in the list,
  // llama.cpp would keep weights in their host buffers, which come before packed ones, and give them large batches.
  static ggml_backend_dev_t no_devices[] = {nullptr};
  llama_model_params params = llama_model_default_params();
  params.load_mode = own->can_map && !own->simulated ? params.load_mode : LLAMA_LOAD_MODE_NONE;
  params.no_alloc = own->simulated;
  params.n_gpu_layers = 0;
  params.devices = no_devices;
  const StockScope stock(!own->kernels);
  const PackedCount packed;
  own->model.reset(null_if_it_throws([&] { return llama_model_load_from_file(path.c_str(), params); }));
  own->packed = packed.bytes();
  if (own->model == nullptr && packed.refused() > 0) {
    const auto n_bytes = static_cast<unsigned long long>(packed.refused());
    throw PackedRefused{format("no memory for %llu MiB of packed weights", n_bytes >> 20), true};
  }
  if (own->model == nullptr) {
    fail(watch.is_out_of_memory() ? DF2_ENOMEM : DF2_EFORMAT, watch, "load", path);
  }
}

// Snapshots that are the best way back of a model; 0: none.
uint32_t n_snapshots(const llama_model *model, bool can_keep_inputs) {
  switch (goes_back(architecture_of(model))) {
    case GoesBack::kByMark:
      return 0;
    case GoesBack::kByKeptInputs:
      return can_keep_inputs ? kKeptSnapshots : 0;
    case GoesBack::kBestBySnapshots:
      return can_keep_inputs ? kKeptSnapshots : kSnapshots;
    case GoesBack::kBySnapshots:
      break;
  }
  return kSnapshots;
}

// What a recurrent state needs to be gone back to.
void add_way_back(const llama_model *model, bool can_keep_inputs, llama_context_params *params) {
  if (!is_recurrent(model)) {
    return;
  }
  // llama.cpp takes no batches below the number of sequences or of snapshots, nor larger ones than the context
  constexpr uint32_t kLeastBatch = kKeptSnapshots + 2;
  params->n_batch = std::max(params->n_batch, kLeastBatch);
  params->n_ubatch = std::max(params->n_ubatch, kLeastBatch);
  params->n_ctx = std::max(params->n_ctx, kLeastBatch);
  params->n_rs_seq = n_snapshots(model, can_keep_inputs);
  if (params->n_rs_seq == 0) {
    params->n_seq_max = 2;
    params->kv_unified = true;
  }
}

llama_context_params context_params(const TargetOptions &options, const OwnContext &own) {
  const int32_t n_ctx_train = llama_model_n_ctx_train(own.model.get());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.n_ctx > 0 ? options.n_ctx : std::min(n_ctx_train, kDefaultContext));
  params.n_batch = static_cast<uint32_t>(options.n_batch > 0 ? options.n_batch : kDefaultBatch);
  params.n_ubatch = params.n_batch;
  params.n_threads = options.n_threads > 0 ? options.n_threads : default_threads().n;
  params.n_threads_batch = params.n_threads;
  params.n_seq_max = 1;
  params.type_k = options.type_k;
  params.type_v = options.type_v;
  params.swa_full = options.swa_full;
  params.cb_eval = show_to_taps;
  params.cb_eval_user_data = own.taps.get();
  params.no_perf = true;
  add_way_back(own.model.get(), own.kernels && kernels_in_use().delta_net != nullptr, &params);
  return params;
}

// llama.cpp plans for graphs of all sequences; where one sequence's are larger, its compute buffers become these.
uint64_t single_sequence_bytes(llama_context *context, const llama_context_params &params) {
  const uint64_t before = SimulatedMemory::n_bytes();
  const uint32_t n_tokens = std::min(llama_n_ubatch(context), llama_n_ctx(context));
  llama_graph_reserve(context, n_tokens, 1, std::min(n_tokens, params.n_batch));
  return SimulatedMemory::n_bytes() - before;
}

// llama.cpp knows what its graph of a model allows: that blocks fit into heads, that MLA has one cache for both.
void check_cache_types(const std::string &path, const TargetOptions &options, const LoadWatch &watch) {
  const bool are_default = options.type_k == GGML_TYPE_F16 && options.type_v == GGML_TYPE_F16;
  if (!are_default && !watch.is_out_of_memory()) {
    throw Error(DF2_EINVAL, format("llama.cpp cannot have a K/V cache of types %s and %s for '%s' (%s); choose other "
                                   "types, f16 if nothing else (cache_type_k, cache_type_v)",
                                   ggml_type_name(options.type_k), ggml_type_name(options.type_v), path.c_str(),
                                   watch.reason().c_str()));
  }
}

void create_context(const std::string &path, const TargetOptions &options, const LoadWatch &watch, OwnContext *own) {
  const llama_context_params params = context_params(options, *own);
  own->context.reset(null_if_it_throws([&] { return llama_init_from_model(own->model.get(), params); }));
  if (own->context == nullptr) {
    check_cache_types(path, options, watch);
  }
  const bool has_packed = own->packed.packed > 0 || (own->simulated && own->kernels);
  if (own->context == nullptr && own->packed.packed > 0) {
    throw PackedRefused{format("no context can be created beside packed weights (%s)", watch.reason().c_str()),
                        !watch.has_aborted()};
  }
  if (own->context == nullptr) {
    fail(watch.has_aborted() ? DF2_EFORMAT : DF2_ENOMEM, watch,
         format("create a context of %u tokens for", params.n_ctx), path);
  }
  if (own->simulated) {
    own->single_bytes = single_sequence_bytes(own->context.get(), params);
  }
  ggml_cgraph *graph = probe_graph(own->context.get()).graph;
  if (has_bad_rotation(graph)) {
    throw Error(DF2_EFORMAT, format("'%s': the number of dimensions that are rotated (rope.dimension_count) is odd or "
                                    "larger than a head; the file is damaged",
                                    path.c_str()));
  }
  if (has_packed && !can_compute_packed(graph)) {
    throw PackedRefused{"its weights are used in a way the kernels do not know", false};
  }
  if (own->simulated) {
    return;
  }
  ggml_threadpool_params pool = ggml_threadpool_params_default(params.n_threads);
  own->threadpool.reset(ggml_threadpool_new(&pool));
  llama_attach_threadpool(own->context.get(), own->threadpool.get(), own->threadpool.get());
}

OwnContext load(const std::string &path, const TargetOptions &options, bool can_map, Loading loading) {
  OwnContext own = {};
  own.can_map = can_map;
  own.simulated = loading == Loading::kSimulated;
  own.quiet = own.simulated ? std::make_unique<LogCapture>(llama_log_set, true) : nullptr;
  own.taps = std::make_unique<df2_taps>();
  own.kernels = options.kernels && are_kernels_in_use();
  own.taps->is_stock = !own.kernels;
  const LoadWatch watch;
  load_model(path, watch, &own);
  create_context(path, options, watch, &own);
  return own;
}

// Loads without kernels what could not be used with them.
OwnContext load_stock(const std::string &path, TargetOptions options, bool can_map, Loading loading,
                      const PackedRefused &refused) {
  if (loading == Loading::kReal) {
    log_line(DF2_LOG_WARN,
             format("'%s' is opened with llama.cpp's own kernels: %s", path.c_str(), refused.reason.c_str()));
  }
  options.kernels = false;
  try {
    return load(path, options, can_map, loading);
  } catch (const std::exception &error) {
    if (!refused.is_out_of_memory) {
      throw;
    }
    throw Error(DF2_ENOMEM, format("out of memory: %s, and '%s' cannot be opened with kernels off (kernels = false) "
                                   "either: %s",
                                   refused.reason.c_str(), path.c_str(), error.what()));
  }
}

}  // namespace

void check_options(const TargetOptions &options) {
  if (options.n_ctx > std::numeric_limits<int32_t>::max() - kContextStep) {
    throw Error(DF2_EINVAL, format("n_ctx is %d, which is too large for any context", options.n_ctx));
  }
  if (options.n_ctx < 0 || options.n_batch < 0 || options.n_threads < 0 || options.n_threads > kMaxThreads) {
    throw Error(DF2_EINVAL,
                format("n_ctx, n_batch and n_threads must not be negative, nor n_threads above %d", kMaxThreads));
  }
}

OwnContext open_context(const std::string &path, const TargetOptions &options, Loading loading) {
  check_options(options);
  const bool can_map = check_target_file(path);
  llama_backend_init();
  Target::prepare_kernels(options.kernels);
  try {
    return load(path, options, can_map, loading);
  } catch (const PackedRefused &refused) {
    return load_stock(path, options, can_map, loading, refused);
  }
}

}  // namespace df2
