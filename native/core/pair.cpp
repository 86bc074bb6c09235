#include "core/pair.h"

#include <algorithm>
#include <string>

#include "common/error.h"

namespace df2 {

namespace {

// A fine-tune may rename a few reserved tokens; more different entries than one in this many are another tokenizer.
constexpr int32_t kTokenTolerance = 100;

}  // namespace

void check_pair(const Target &target, const Drafter &drafter) {
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
  if (n_different > 0) {
    log_line(DF2_LOG_WARN, format("%d of %d tokens are named differently in the drafter and the target", n_different,
                                  params.n_vocab));
  }
}

}  // namespace df2
