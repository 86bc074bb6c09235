#include "core/pair.h"

#include <algorithm>
#include <string>

#include "common/error.h"

namespace df2 {

namespace {

// A fine-tune may rename a few reserved tokens; more different entries than one in this many are another tokenizer.
constexpr int32_t kTokenTolerance = 100;

}  // namespace

int32_t check_fit(const Target &target, const Drafter &drafter) {
  const DrafterParams &params = drafter.params();
  const auto mismatch = [&](const std::string &problem) {
    throw Error(DF2_EMISMATCH,
                format("drafter '%s' does not fit this target: %s", drafter.path().c_str(), problem.c_str()));
  };
  if (params.n_embd_target != target.n_embd()) {
    mismatch(format("it was trained on hidden states of %d numbers, the target has %d", params.n_embd_target,
                    target.n_embd()));
  }
  const bool is_self_contained = drafter.weights().token_embd != nullptr && drafter.weights().output != nullptr;
  if (params.n_embd != target.n_embd() && !is_self_contained) {
    mismatch(format("its hidden size is %d, but it shares the embeddings or the head of a target with %d",
                    params.n_embd, target.n_embd()));
  }
  if (params.n_vocab != target.n_vocab()) {
    mismatch(format("its vocabulary has %d tokens, the target's %d", params.n_vocab, target.n_vocab()));
  }
  const int32_t last_tap = *std::max_element(params.taps.begin(), params.taps.end());
  if (last_tap > target.n_layer()) {
    mismatch(format("it taps layer %d, the target has %d layers", last_tap - 1, target.n_layer()));
  }
  const int32_t n_different = target.n_token_mismatches(drafter.token_hashes());
  if (n_different > params.n_vocab / kTokenTolerance) {
    mismatch(format("%d of %d tokens differ; convert the drafter with this target's tokenizer", n_different,
                    params.n_vocab));
  }
  return n_different;
}

void check_pair(const Target &target, const Drafter &drafter) {
  const int32_t n_different = check_fit(target, drafter);
  if (n_different > 0) {
    log_line(DF2_LOG_WARN, format("%d of %d tokens are named differently in the drafter and the target", n_different,
                                  drafter.params().n_vocab));
  }
}

void warn_of_unstated_scales(const Target &target, const Drafter &drafter, const SharedWeights &shared) {
  const DrafterParams &params = drafter.params();
  const std::string architecture = target.architecture();
  if (drafter.weights().token_embd == nullptr && params.embedding_scale == 0.0f && shared.embedding_scale != 1.0f) {
    log_line(
        DF2_LOG_WARN,
        format("drafter '%s' does not state dflash.embedding_scale: the target's is used, %g ('%s'). If few drafts "
               "are accepted, convert it again with the input_embedding_scale it was trained with",
               drafter.path().c_str(), static_cast<double>(shared.embedding_scale), architecture.c_str()));
  }
  // without a selector only the order of the logits matters
  const bool adds_to_logits = params.version == 2 && drafter.weights().output == nullptr;
  if (adds_to_logits && params.logit_scale == 0.0f && params.logit_softcap == 0.0f && shared.changes_logits) {
    log_line(DF2_LOG_WARN,
             format("drafter '%s' states neither dflash.logit_scale nor dflash.final_logit_softcapping: its logits are "
                    "those of the head, though '%s' scales or caps them. If few drafts are accepted, convert it again "
                    "with the output_multiplier or final_logit_softcapping it was trained with",
                    drafter.path().c_str(), architecture.c_str()));
  }
}

}  // namespace df2
