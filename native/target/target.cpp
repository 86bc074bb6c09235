#include "target/target.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

#include "common/cpu_count.h"
#include "common/error.h"
#include "common/gguf_file.h"
#include "common/load_guard.h"
#include "common/token_hash.h"
#include "cpu_backend/kernels.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace df2 {

namespace {

constexpr int32_t kDefaultContext = 4096;
constexpr int32_t kDefaultBatch = 512;
constexpr int32_t kMaxThreads = 512;  // ggml's own limit

std::mutex contexts_mutex;
std::set<const llama_context *> contexts_in_use;

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

// llama.cpp aborts rather than fails on files whose numbers contradict each other, so the plainest are tested first.
void check_target_file(const std::string &path) {
  const GgufFile file(path);
  const std::string architecture = file.text("general.architecture");
  if (architecture == "dflash") {
    throw Error(DF2_EFORMAT, format("'%s' is a drafter, not a target; swap the two files", path.c_str()));
  }
  // the first part of a split model may hold the header alone
  if (file.tensors().empty() && !file.has("split.count")) {
    throw Error(DF2_EFORMAT, format("'%s' holds no tensors (only a vocabulary?)", path.c_str()));
  }
  for (const TensorInfo &tensor : file.tensors()) {
    check_weight_type(path, tensor);
  }
  for (const char *epsilon : {".attention.layer_norm_rms_epsilon", ".attention.layer_norm_epsilon"}) {
    if (file.number(architecture + epsilon, 0.0f) < 0.0f) {
      throw Error(DF2_EFORMAT, format("'%s': %s%s must not be negative", path.c_str(), architecture.c_str(), epsilon));
    }
  }
  file.integer(architecture + ".block_count", 1, 4096);
  file.integer(architecture + ".embedding_length", 1, 1 << 20);
  file.integer(architecture + ".context_length", 1, 1 << 30);
  if (file.texts("tokenizer.ggml.tokens").empty()) {
    throw Error(DF2_EFORMAT, format("'%s' has an empty tokenizer", path.c_str()));
  }
}

// Also for a model without kernels: the first one a process loads decides whether later ones can have them.
void prepare_kernels(bool is_wanted) {
  try {
    enable_kernels();
  } catch (const Error &) {
    if (is_wanted) {
      throw;
    }
  }
}

void fill_batch(llama_batch *batch, const int32_t *tokens, int32_t n_tokens, int32_t position, bool all_logits) {
  batch->n_tokens = n_tokens;
  for (int32_t i = 0; i < n_tokens; ++i) {
    batch->token[i] = tokens[i];
    batch->pos[i] = position + i;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = 0;
    batch->logits[i] = all_logits || i + 1 == n_tokens;
  }
}

}  // namespace

std::unique_ptr<Target> Target::open(const std::string &path, const TargetOptions &options) {
  if (options.n_ctx < 0 || options.n_batch < 0 || options.n_threads < 0 || options.n_threads > kMaxThreads) {
    throw Error(DF2_EINVAL,
                format("n_ctx, n_batch and n_threads must not be negative, nor n_threads above %d", kMaxThreads));
  }
  check_target_file(path);
  llama_backend_init();
  prepare_kernels(options.kernels);
  std::unique_ptr<Target> target = load(path, options);
  if (target == nullptr || !target->can_use_packed()) {
    log_line(DF2_LOG_WARN, format("'%s' uses its weights in a way the kernels do not know; llama.cpp's own are "
                                  "used",
                                  path.c_str()));
    TargetOptions without_kernels = options;
    without_kernels.kernels = false;
    target.reset();
    target = load(path, without_kernels);
  }
  return target;
}

std::unique_ptr<Target> Target::load(const std::string &path, const TargetOptions &options) {
  std::unique_ptr<Target> target(new Target());
  target->own_taps_ = std::make_unique<df2_taps>();
  target->may_mark_ = options.kernels && are_kernels_in_use();
  target->owns_context_ = true;
  const LoadGuard guard;
  const auto fail = [&](df2_status status, const char *what) {
    const std::string detail = guard.message().empty() ? "see llama.cpp's log" : guard.message();
    throw Error(status, format("llama.cpp cannot %s '%s' (%s)", what, path.c_str(), detail.c_str()));
  };
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;  // the drafter computes with the head and embeddings on the CPU
  try {
    const StockWeights stock(!options.kernels);
    const PackedCount packed;
    target->model_ = llama_model_load_from_file(path.c_str(), model_params);
    target->packed_ = packed.bytes();
    target->knows_packed_ = true;
  } catch (const std::exception &) {
    target->model_ = nullptr;  // an abort that llama.cpp's own handlers did not meet
  }
  if (target->model_ == nullptr) {
    fail(DF2_EFORMAT, "load");
  }
  const int32_t n_ctx_train = llama_model_n_ctx_train(target->model_);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.n_ctx > 0 ? options.n_ctx : std::min(n_ctx_train, kDefaultContext));
  params.n_batch = static_cast<uint32_t>(options.n_batch > 0 ? options.n_batch : kDefaultBatch);
  params.n_ubatch = params.n_batch;
  params.n_threads = options.n_threads > 0 ? options.n_threads : physical_cores();
  params.n_threads_batch = params.n_threads;
  params.n_seq_max = 1;
  params.cb_eval = df2_taps_eval;
  params.cb_eval_user_data = target->own_taps_.get();
  params.no_perf = true;
  try {
    target->context_ = llama_init_from_model(target->model_, params);
  } catch (const std::exception &) {
    target->context_ = nullptr;
  }
  if (target->context_ == nullptr && target->packed_.packed > 0 && !guard.message().empty()) {
    return nullptr;  // ggml may have found no way to compute with packed weights
  }
  if (target->context_ == nullptr) {
    fail(DF2_ENOMEM, format("create a context of %u tokens for", params.n_ctx).c_str());
  }
  if (!options.kernels) {
    target->leave_to_ggml();
  }
  ggml_threadpool_params pool = ggml_threadpool_params_default(params.n_threads);
  target->threadpool_ = ggml_threadpool_new(&pool);
  llama_attach_threadpool(target->context_, target->threadpool_, target->threadpool_);
  target->taps_ = target->own_taps_.get();
  target->vocab_ = llama_model_get_vocab(target->model_);
  target->batch_ = std::make_unique<llama_batch>(llama_batch_init(target->n_batch(), 0, 1));
  return target;
}

std::unique_ptr<Target> Target::attach(llama_context *context, df2_taps *taps) {
  std::unique_ptr<Target> target(new Target());
  target->context_ = context;
  target->taps_ = taps;
  target->may_mark_ = are_kernels_in_use();
  target->model_ = const_cast<llama_model *>(llama_get_model(context));
  target->vocab_ = llama_model_get_vocab(target->model_);
  target->batch_ = std::make_unique<llama_batch>(llama_batch_init(target->n_batch(), 0, 1));
  return target;
}

Target::~Target() {
  if (batch_ != nullptr) {
    llama_batch_free(*batch_);
  }
  stock_buffers_.reset();
  if (owns_context_) {
    llama_free(context_);
    llama_model_free(model_);
    ggml_threadpool_free(threadpool_);
  }
}

int32_t Target::n_ctx() const {
  return static_cast<int32_t>(llama_n_ctx_seq(context_));
}

int32_t Target::n_batch() const {
  return static_cast<int32_t>(llama_n_batch(context_));
}

int32_t Target::n_threads() const {
  return llama_n_threads(context_);
}

int32_t Target::n_vocab() const {
  return llama_vocab_n_tokens(vocab_);
}

int32_t Target::n_layer() const {
  return llama_model_n_layer(model_);
}

int32_t Target::n_embd() const {
  return llama_model_n_embd(model_);
}

bool Target::is_end(int32_t token) const {
  return llama_vocab_is_eog(vocab_, token);
}

std::string Target::architecture() const {
  char name[128] = "";
  llama_model_meta_val_str(model_, "general.architecture", name, sizeof(name));
  return name;
}

std::string Target::rewind_problem() const {
  if (llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_)) {
    return format(
        "'%s' keeps a recurrent state, which cannot drop single tokens; only attention-only targets are "
        "supported",
        architecture().c_str());
  }
  if (llama_pooling_type(context_) > LLAMA_POOLING_TYPE_NONE) {
    return "the context pools embeddings instead of giving logits; create it without embeddings";
  }
  if (llama_model_has_encoder(model_) || llama_get_memory(context_) == nullptr) {
    return format("'%s' is not a decoder with a K/V cache", architecture().c_str());
  }
  return "";
}

int32_t Target::tokenize(const char *text, int32_t n_bytes, bool add_special, bool parse_special, int32_t *tokens,
                         int32_t capacity) const {
  const LoadGuard guard;
  try {
    const int32_t n = llama_tokenize(vocab_, text, n_bytes, tokens, capacity, add_special, parse_special);
    return n < 0 ? -n : n;
  } catch (const std::exception &error) {
    throw Error(DF2_EINVAL, format("the target's vocabulary cannot encode this text (%s)", error.what()));
  }
}

int32_t Target::n_token_mismatches(const std::vector<uint32_t> &hashes) const {
  const auto n_shared = std::min(hashes.size(), static_cast<size_t>(n_vocab()));
  int32_t n_different = 0;
  for (size_t i = 0; i < n_shared; ++i) {
    const auto token = static_cast<int32_t>(i);
    n_different += token_hash(llama_vocab_get_text(vocab_, token), token) != hashes[i] ? 1 : 0;
  }
  return n_different;
}

void Target::decode_batch(const int32_t *tokens, int32_t n_tokens, int32_t position, bool all_logits) {
  fill_batch(batch_.get(), tokens, n_tokens, position, all_logits);
  const int32_t status = llama_decode(context_, *batch_);
  if (status == 0) {
    return;
  }
  const char *reason = status == 1 ? "no room in its memory" : status == 2 ? "aborted by the program" : "see its log";
  throw Error(DF2_EBACKEND, format("llama_decode failed (%d: %s); the session is as before", status, reason));
}

void Target::decode(const int32_t *tokens, int32_t n_tokens, int32_t position, bool all_logits, float *features) {
  if (taps_ != nullptr) {
    taps_->begin(features, n_tokens, may_mark_);
  }
  // the last layer computes only rows that ask for logits, so reading it means asking for all
  const bool taps_last = features != nullptr && std::count(tap_layers_.begin(), tap_layers_.end(), n_layer()) != 0;
  try {
    decode_batch(tokens, n_tokens, position, all_logits || taps_last);
  } catch (...) {
    if (taps_ != nullptr) {
      taps_->end();
    }
    throw;
  }
  if (features == nullptr) {
    return;
  }
  if (taps_ == nullptr) {
    read_layer_inputs(features, n_tokens);
    return;
  }
  const bool complete = taps_->complete();
  taps_->end();
  if (!complete) {
    throw Error(DF2_EBACKEND,
                "llama.cpp did not show the hidden states of every tapped layer; is the df2_taps object "
                "the context's cb_eval_user_data, with df2_taps_eval as cb_eval?");
  }
}

const float *Target::logits(int32_t i) const {
  return llama_get_logits_ith(context_, i);
}

// What llama_sampler_sample does, which aborts on a chain that selects nothing.
int32_t Target::sample(llama_sampler *sampler, int32_t i) {
  const float *values = logits(i);
  candidates_.resize(static_cast<size_t>(n_vocab()));
  for (size_t id = 0; id < candidates_.size(); ++id) {
    candidates_[id] = {static_cast<llama_token>(id), values[id], 0.0f};
  }
  llama_token_data_array array = {candidates_.data(), candidates_.size(), -1, false};
  llama_sampler_apply(sampler, &array);
  if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) {
    throw Error(DF2_EINVAL, "the sampler chain selected no token; end it with a greedy, dist or mirostat sampler");
  }
  const llama_token token = array.data[array.selected].id;
  try {
    llama_sampler_accept(sampler, token);
  } catch (const std::exception &error) {
    throw Error(DF2_EINVAL, format("the sampler chain refused its own choice (%s); put a grammar before the sampler "
                                   "that selects",
                                   error.what()));
  }
  return token;
}

bool Target::truncate(int32_t position) {
  return llama_memory_seq_rm(llama_get_memory(context_), 0, position, -1);
}

bool Target::can_continue_at(int32_t position) const {
  const int32_t n_swa = llama_model_n_swa(model_);
  if (n_swa <= 0 || position == 0) {
    return true;
  }
  // a sliding-window cache drops what its newest position no longer sees
  const int32_t oldest = llama_memory_seq_pos_min(llama_get_memory(context_), 0);
  return oldest >= 0 && oldest <= std::max(0, position - n_swa);
}

ContextClaim::ContextClaim(llama_context *context) : context_(context) {
  const std::lock_guard<std::mutex> lock(contexts_mutex);
  if (!contexts_in_use.insert(context).second) {
    throw Error(DF2_EINVAL, "the target's context already has a session; free that one first");
  }
}

ContextClaim::~ContextClaim() {
  const std::lock_guard<std::mutex> lock(contexts_mutex);
  contexts_in_use.erase(context_);
}

void Target::clear() {
  llama_memory_clear(llama_get_memory(context_), true);
}

}  // namespace df2

bool df2_taps_eval(ggml_tensor *tensor, bool ask, void *taps) {
  return static_cast<df2_taps *>(taps)->on_tensor(tensor, ask);
}
