// The target: a llama.cpp context, seen through what a session needs of it. Nothing above this folder includes
// llama.cpp's headers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/shared_weights.h"
#include "cpu_backend/cell_places.h"
#include "cpu_backend/kernels.h"
#include "cpu_backend/packed_bytes.h"
#include "cpu_backend/simulated_memory.h"
#include "dflash2.h"
#include "ggml.h"
#include "target/tap_source.h"
#include "target/target_bytes.h"
#include "target/target_memory.h"

struct ggml_threadpool;
struct llama_batch;
struct llama_model;
struct llama_token_data;
struct llama_vocab;

namespace df2 {

struct OwnContext;

struct TargetOptions {
  int32_t n_ctx;      // 0: the model's, at most 4096
  int32_t n_batch;    // 0: 512
  int32_t n_threads;  // 0: default_threads()
  bool kernels;       // where they can be used
  ggml_type type_k;   // of the K/V cache
  ggml_type type_v;
  bool swa_full;  // whether layers with a sliding window keep the keys and values of the whole context
};

// Throws DF2_EINVAL for options out of range.
void check_options(const TargetOptions &options);

class Target {
 public:
  // Loads a model. Throws DF2_EINVAL, DF2_EIO, DF2_EFORMAT, DF2_ENOMEM, DF2_EUNSUPPORTED.
  static std::unique_ptr<Target> open(const std::string &path, const TargetOptions &options);
  // Enables the kernels, as open() does, unless they are not wanted and cannot be. They test themselves, which is to be
  // done before memory is simulated.
  static void prepare_kernels(bool is_wanted);
  // The same as open(), without weights and memory: to be asked what it takes, and for its shapes; it decodes nothing.
  // SimulatedMemory must be active as long as it exists.
  static std::unique_ptr<Target> simulate(const std::string &path, const TargetOptions &options);
  // Wraps a context, which must outlive the target. taps: of the context's evaluation callback, or null.
  static std::unique_ptr<Target> attach(llama_context *context, df2_taps *taps);
  ~Target();

  llama_context *context() const { return context_; }
  ggml_threadpool *threadpool() const;  // null: the context's owner knows
  bool uses_kernels() const { return uses_kernels_; }
  int32_t n_ctx() const;
  int32_t n_batch() const;
  int32_t n_threads() const;
  int32_t n_vocab() const;
  int32_t n_layer() const;
  int32_t n_embd() const;
  bool is_end(int32_t token) const;
  std::string architecture() const;
  // What the model is, in one line: its name, type and size, not its weights.
  std::string description() const;

  // Why the memory cannot drop tokens; empty if it can.
  std::string rewind_problem() const;

  TargetMemory &memory() { return *memory_; }

  // llama_tokenize: the number of ids, written if they fit into capacity. Throws DF2_EINVAL where llama.cpp throws or
  // aborts.
  int32_t tokenize(const char *text, int32_t n_bytes, bool add_special, bool parse_special, int32_t *tokens,
                   int32_t capacity) const;

  // How many of the vocabulary's entries have another token_hash() than these, a drafter's.
  int32_t n_token_mismatches(const std::vector<uint32_t> &hashes) const;

  // Embeddings and head, for use in other graphs as long as the model is there. Throws DF2_EUNSUPPORTED if they cannot
  // be shared.
  SharedWeights shared_weights();

  // Of the weights its graph computes with. Throws DF2_EUNSUPPORTED if it uses them in a way that ends the process.
  PackedBytes packed_weights();

  // Memory of the context and its model. Builds a graph, as shared_weights().
  TargetBytes bytes();

  // Of that, what going back takes.
  uint64_t rewind_bytes() { return is_recurrent(model_) ? bytes().rewind : 0; }

  // From now on, decodes can read these layers (as layer inputs). Empty: stop, which never fails. Throws
  // DF2_EUNSUPPORTED if neither this architecture nor this context shows them; none are read then.
  void select_taps(const std::vector<int32_t> &layers);

  // Decodes tokens at positions position, position + 1, ... of sequence 0. first_logits: the first token whose logits
  // are wanted, all later ones' are too. features: [n_tokens][n_taps * n_embd] to fill, once taps are selected, or
  // null. n_tokens <= n_batch. Throws DF2_EBACKEND; the memory may then hold some of the tokens, and the caller goes
  // back.
  void decode(const int32_t *tokens, int32_t n_tokens, int32_t position, int32_t first_logits, float *features);

  // Logits of the i-th token of the last decode, if it asked for them; -1 is the last: [n_vocab].
  const float *logits(int32_t i) const;

  // Whether a token can be chosen by such logits: none is NaN or plus infinity, and one is finite.
  bool has_numbers(const float *logits) const;

  // Runs a sampler chain on such logits; the chain accepts what it picks. Throws DF2_EINVAL if it picks nothing.
  int32_t sample(llama_sampler *sampler, const float *logits);

  // Positions of sequence 0, up to its last one. They are not the session's if something else has decoded with the
  // context (an image, say) or changed its memory.
  int32_t n_held() const;

  // Whether those are as many as the session has decoded.
  bool holds(int32_t n_decoded) const;

  // Throws DF2_EINVAL, saying what to do, if they are not.
  void check_held(int32_t n_decoded) const;

  // Warns if it clears more than the n_left positions that an earlier session left behind.
  void clear();

  // What a session that ends has left in sequence 0.
  void leave(int32_t n_tokens) { n_left_ = n_tokens; }

 private:
  Target(llama_context *context, df2_taps *taps, bool uses_kernels);
  static std::unique_ptr<Target> own(OwnContext context);
  void decode_batch(const int32_t *tokens, int32_t n_tokens, int32_t position, int32_t first_logits);

  const ListReader reader_;
  std::unique_ptr<OwnContext> own_;  // null: attached
  const llama_model *model_;
  const llama_vocab *vocab_;
  llama_context *context_;
  df2_taps *taps_;
  std::unique_ptr<PackedBytes> packed_;  // null until known
  const bool uses_kernels_;
  std::unique_ptr<TargetMemory> memory_;
  std::unique_ptr<TapSource> tap_source_;
  bool taps_last_layer_ = false;
  int32_t n_left_ = 0;
  CellPlaces places_;  // of sequence 0
  std::unique_ptr<llama_batch> batch_;
  std::vector<llama_token_data> candidates_;
};

}  // namespace df2
