#include "target/target.h"

#include <algorithm>
#include <cmath>

#include "common/error.h"
#include "common/load_guard.h"
#include "common/token_hash.h"
#include "cpu_backend/kept_inputs.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/stock.h"
#include "llama.h"
#include "target/architectures.h"
#include "target/target_graph.h"
#include "target/target_open.h"

namespace df2 {

namespace {

void fill_batch(llama_batch *batch, const int32_t *tokens, int32_t n_tokens, int32_t position, int32_t first_logits) {
  batch->n_tokens = n_tokens;
  for (int32_t i = 0; i < n_tokens; ++i) {
    batch->token[i] = tokens[i];
    batch->pos[i] = position + i;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = 0;
    batch->logits[i] = i >= first_logits;
  }
}

}  // namespace

std::unique_ptr<Target> Target::open(const std::string &path, const TargetOptions &options) {
  return own(open_context(path, options, Loading::kReal));
}

// Also for a model without kernels: the first one a process loads decides whether later ones can have them.
void Target::prepare_kernels(bool is_wanted) {
  try {
    enable_kernels();
  } catch (const Error &) {
    if (is_wanted) {
      throw;
    }
  }
}

std::unique_ptr<Target> Target::simulate(const std::string &path, const TargetOptions &options) {
  return own(open_context(path, options, Loading::kSimulated));
}

std::unique_ptr<Target> Target::own(OwnContext context) {
  auto own = std::make_unique<OwnContext>(std::move(context));
  std::unique_ptr<Target> target(new Target(own->context.get(), own->taps.get(), own->kernels));
  target->packed_ = std::make_unique<PackedBytes>(own->packed);
  target->own_ = std::move(own);
  return target;
}

std::unique_ptr<Target> Target::attach(llama_context *context, df2_taps *taps) {
  return std::unique_ptr<Target>(new Target(context, taps, are_kernels_in_use()));
}

Target::Target(llama_context *context, df2_taps *taps, bool uses_kernels)
    : model_(llama_get_model(context)),
      vocab_(llama_model_get_vocab(model_)),
      context_(context),
      taps_(taps),
      uses_kernels_(uses_kernels),
      memory_(make_target_memory(context, uses_kernels)),
      batch_(std::make_unique<llama_batch>(llama_batch_init(n_batch(), 0, 1))) {}

Target::~Target() {
  llama_batch_free(*batch_);
}

ggml_threadpool *Target::threadpool() const {
  return own_ != nullptr ? own_->threadpool.get() : nullptr;
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
  return architecture_of(model_);
}

std::string Target::description() const {
  char name[256] = "";
  char type[256] = "";
  llama_model_meta_val_str(model_, "general.name", name, sizeof(name));
  llama_model_desc(model_, type, sizeof(type));
  std::string line =
      format("%s, %s, %llu bytes", name, type, static_cast<unsigned long long>(llama_model_size(model_)));
  std::replace_if(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return line;
}

std::string Target::rewind_problem() const {
  if (llama_pooling_type(context_) > LLAMA_POOLING_TYPE_NONE) {
    return "the context pools embeddings instead of giving logits; create it without embeddings";
  }
  if (llama_model_has_encoder(model_) || llama_get_memory(context_) == nullptr) {
    return format("'%s' is not a decoder with a K/V cache", architecture().c_str());
  }
  return memory_problem(context_, architecture());
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

void Target::decode_batch(const int32_t *tokens, int32_t n_tokens, int32_t position, int32_t first_logits) {
  fill_batch(batch_.get(), tokens, n_tokens, position, first_logits);
  const int32_t status = [&] {
    const PlacesScope places(&places_, position, n_tokens);
    const KeptScope kept(memory_->kept_inputs());
    return llama_decode(context_, *batch_);
  }();
  memory_->decoded(position, n_tokens, status);
  if (status == 0) {
    return;
  }
  const char *reason = status == 1 ? "no room in its memory" : status == 2 ? "aborted by the program" : "see its log";
  throw Error(DF2_EBACKEND, format("llama_decode failed (%d: %s); the session is as before", status, reason));
}

void Target::decode(const int32_t *tokens, int32_t n_tokens, int32_t position, int32_t first_logits, float *features) {
  if (features == nullptr) {
    decode_batch(tokens, n_tokens, position, first_logits);
    return;
  }
  // the last layer computes only rows that ask for logits, so reading it means asking for all
  tap_source_->read(features, n_tokens,
                    [&] { decode_batch(tokens, n_tokens, position, taps_last_layer_ ? 0 : first_logits); });
}

const float *Target::logits(int32_t i) const {
  return llama_get_logits_ith(context_, i);
}

bool Target::has_numbers(const float *logits) const {
  const int32_t n = n_vocab();
  // every comparison with NaN is false
  int32_t n_below_infinity = 0;
  int32_t n_above_minus_infinity = 0;
  for (int32_t id = 0; id < n; ++id) {
    n_below_infinity += logits[id] < INFINITY ? 1 : 0;
    n_above_minus_infinity += logits[id] > -INFINITY ? 1 : 0;
  }
  return n_below_infinity == n && n_above_minus_infinity > 0;
}

// What llama_sampler_sample does, which aborts on a chain that selects nothing.
int32_t Target::sample(llama_sampler *sampler, const float *logits) {
  candidates_.resize(static_cast<size_t>(n_vocab()));
  for (size_t id = 0; id < candidates_.size(); ++id) {
    candidates_[id] = {static_cast<llama_token>(id), logits[id], 0.0f};
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

int32_t Target::n_held() const {
  return llama_memory_seq_pos_max(llama_get_memory(context_), 0) + 1;
}

bool Target::holds(int32_t n_decoded) const {
  return n_held() == memory_->n_positions(n_decoded);
}

void Target::check_held(int32_t n_decoded) const {
  if (!holds(n_decoded)) {
    throw Error(DF2_EINVAL,
                format("the context's sequence 0 has %d positions, of which this session has decoded %d: something "
                       "else has decoded with the context (an image perhaps), or changed its memory. A session decodes "
                       "all of its sequence itself, and tokens alone: rewind to 0 and prefill the whole text; after an "
                       "image, generate without a session",
                       n_held(), n_decoded));
  }
}

void Target::clear() {
  if (n_held() != 0 && n_held() != n_left_) {
    log_line(DF2_LOG_WARN, format("the context's sequence 0 had %d positions, which are cleared now: a session decodes "
                                  "all of its sequence itself. Prefill the whole text; images and other embeddings it "
                                  "cannot take over",
                                  n_held()));
  }
  llama_memory_clear(llama_get_memory(context_), true);
  memory_->cleared();
  places_.clear();
}

SharedWeights Target::shared_weights() {
  return find_shared_weights(probe_graph(context_).graph, n_embd(), n_vocab(), architecture());
}

PackedBytes Target::packed_weights() {
  if (packed_ == nullptr) {
    ggml_cgraph *graph = probe_graph(context_).graph;
    if (!can_compute_packed(graph)) {
      throw Error(DF2_EUNSUPPORTED, format("architecture '%s' uses its weights in a way the kernels do not know; set "
                                           "DF2_KERNELS=off",
                                           architecture().c_str()));
    }
    packed_ = std::make_unique<PackedBytes>(df2::packed_weights(graph));
    const std::string elsewhere = unpacked_buffer(graph);
    if (kernel_status().state == DF2_KERNELS_ACTIVE && packed_->packed == 0 && !elsewhere.empty()) {
      log_line(DF2_LOG_WARN,
               format("the attached target's weights are not packed for the kernels, but in %s buffers; in "
                      "a llama.cpp with GPUs, load the model with no_host = true",
                      elsewhere.c_str()));
    }
  }
  return *packed_;
}

TargetBytes Target::bytes() {
  const bool can_map = own_ == nullptr || own_->can_map;
  const StockScope stock(!uses_kernels());
  TargetBytes bytes = bytes_of(context_, probe_graph(context_).graph, can_map);
  bytes.compute = std::max(bytes.compute, own_ != nullptr ? own_->single_bytes : 0);
  bytes.rewind = memory_->bytes(bytes.state);
  bytes.state -= bytes.rewind;
  return bytes;
}

void Target::select_taps(const std::vector<int32_t> &layers) {
  tap_source_.reset();
  taps_last_layer_ = std::count(layers.begin(), layers.end(), n_layer()) != 0;
  if (!layers.empty()) {
    tap_source_ = make_tap_source({context_, architecture(), layers, n_embd(), n_layer(), taps_, uses_kernels()});
  }
}

}  // namespace df2
