// Hidden states read from marked nodes against hidden states read by cutting the graph, bit by bit.
#include <cstring>
#include <vector>

#include "check.h"
#include "cpu_backend/taps.h"
#include "dflash2.h"
#include "llama.h"

namespace {

const std::vector<int32_t> kLayers = {3, 1, 4};  // as layer inputs; the tiny target has 4 layers
constexpr int32_t kTokens = 11;
constexpr int32_t kMicroBatch = 4;

int n_cuts = 0;

// llama.cpp asks about every node, and comes back to those it is to be cut at.
bool count_cuts(ggml_tensor *tensor, bool ask, void *taps) {
  n_cuts += ask ? 0 : 1;
  return df2_taps_eval(tensor, ask, taps);
}

struct Decoded {
  std::vector<float> features;
  std::vector<float> logits;
  bool complete;
};

class Context {
 public:
  Context(llama_model *model, df2_taps *taps) : taps_(taps) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_ubatch = kMicroBatch;
    params.n_threads = params.n_threads_batch = 2;
    params.cb_eval = count_cuts;
    params.cb_eval_user_data = taps;
    context_ = llama_init_from_model(model, params);
    n_embd_ = llama_model_n_embd(model);
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
  }
  ~Context() { llama_free(context_); }

  Decoded decode(bool reads, bool may_mark) {
    llama_memory_clear(llama_get_memory(context_), true);
    llama_batch batch = llama_batch_init(kTokens, 0, 1);
    batch.n_tokens = kTokens;
    for (int32_t i = 0; i < kTokens; ++i) {
      batch.token[i] = 5 + 7 * i;
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;  // the last layer computes what asks for logits
    }
    Decoded decoded;
    decoded.features.resize(kLayers.size() * static_cast<size_t>(kTokens * n_embd_), -1.0f);
    taps_->begin(reads ? decoded.features.data() : nullptr, kTokens, may_mark);
    n_cuts = 0;
    CHECK(llama_decode(context_, batch) == 0);
    decoded.complete = taps_->complete();
    taps_->end();
    for (int32_t i = 0; i < kTokens; ++i) {
      const float *row = llama_get_logits_ith(context_, i);
      decoded.logits.insert(decoded.logits.end(), row, row + n_vocab_);
    }
    llama_batch_free(batch);
    return decoded;
  }

 private:
  df2_taps *taps_;
  llama_context *context_;
  int32_t n_embd_;
  int32_t n_vocab_;
};

void test_model(llama_model *model) {
  df2_taps *taps = nullptr;
  CHECK(df2_taps_create(&taps) == DF2_OK);
  {
    Context context(model, taps);
    taps->select(kLayers, llama_model_n_embd(model));
    const Decoded cut = context.decode(true, false);
    CHECK(cut.complete);
    CHECK(n_cuts >= 3 * static_cast<int>(kLayers.size()));  // in each of three micro-batches
    for (int i = 0; i < 3; ++i) {                           // llama.cpp computes the same graph again
      const Decoded marked = context.decode(true, true);
      CHECK(marked.complete);
      CHECK(n_cuts == 0);
      CHECK(marked.features == cut.features);
      CHECK(marked.logits == cut.logits);
    }
    // marks of an earlier decode mean nothing to one that reads nothing, or something else
    CHECK(context.decode(false, true).logits == cut.logits);
    CHECK(n_cuts == 0);
    taps->select({1}, llama_model_n_embd(model));
    const Decoded one = context.decode(true, true);
    CHECK(one.complete);
    const auto width = static_cast<size_t>(llama_model_n_embd(model));
    for (size_t row = 0; row < kTokens; ++row) {
      const float *expected = cut.features.data() + (row * kLayers.size() + 1) * width;
      CHECK(std::memcmp(one.features.data() + row * width, expected, width * sizeof(float)) == 0);
    }
    // a layer that does not exist is missed
    taps->select({9}, llama_model_n_embd(model));
    CHECK(!context.decode(true, true).complete);
    taps->select({}, 0);
    CHECK(context.decode(false, true).logits == cut.logits);
  }
  df2_taps_free(taps);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    return 2;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  CHECK(df2_kernels_enable() == DF2_OK);
  llama_backend_init();
  llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  CHECK(model != nullptr);
  if (model != nullptr) {
    test_model(model);
    llama_model_free(model);
  }
  return report("taps");
}
