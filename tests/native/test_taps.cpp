// Hidden states read by the rule of the CPU back end against hidden states read by cutting the graph, bit by bit.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "common/error.h"
#include "cpu_backend/rule_taps.h"
#include "dflash2.h"
#include "ggml_nodes.h"
#include "llama.h"
#include "target/tap_source.h"

namespace {

using df2::TapForm;
using df2::TapRecorder;
using df2::TapScope;

const std::vector<int32_t> kLayers = {3, 1, 4};  // as layer inputs; the tiny target has 4 layers
constexpr int32_t kTokens = 11;
constexpr int32_t kMicroBatch = 4;

// -- Models -----------------------------------------------------------------------------------------------------------

thread_local int n_cuts = 0;

// llama.cpp asks about every node, and comes back to those it is to be cut at.
bool count_cuts(ggml_tensor *tensor, bool ask, void *taps) {
  n_cuts += ask ? 0 : 1;
  return df2_taps_eval(tensor, ask, taps);
}

struct Decoded {
  std::vector<float> features;
  std::vector<float> logits;
  bool is_complete;
};

class Context {
 public:
  // taps: of the evaluation callback; null: there is none.
  Context(llama_model *model, df2_taps *taps) : taps_(taps) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_ubatch = kMicroBatch;
    params.n_threads = params.n_threads_batch = 2;
    params.cb_eval = taps != nullptr ? count_cuts : nullptr;
    params.cb_eval_user_data = taps;
    context_ = llama_init_from_model(model, params);
    n_embd_ = llama_model_n_embd(model);
    n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
  }
  ~Context() { llama_free(context_); }

  // Hidden states by the callback.
  Decoded cut(const std::vector<int32_t> &layers, int32_t first_token = 5) {
    TapRecorder &recorder = taps_->recorder;
    recorder.select(layers, n_embd_, TapForm::kRow);
    return record(recorder, layers.size(), first_token);
  }

  // Hidden states by the rule.
  Decoded whole(const std::vector<int32_t> &layers, int32_t first_token = 5) {
    recorder_.select(layers, n_embd_, TapForm::kRow);
    const TapScope scope(&recorder_);
    return record(recorder_, layers.size(), first_token);
  }

  std::vector<float> logits(int32_t first_token = 5) {
    llama_memory_clear(llama_get_memory(context_), true);
    llama_batch batch = llama_batch_init(kTokens, 0, 1);
    batch.n_tokens = kTokens;
    for (int32_t i = 0; i < kTokens; ++i) {
      batch.token[i] = (first_token + 7 * i) % n_vocab_;
      batch.pos[i] = i;
      batch.n_seq_id[i] = 1;
      batch.seq_id[i][0] = 0;
      batch.logits[i] = 1;  // the last layer computes what asks for logits
    }
    n_cuts = 0;
    CHECK(llama_decode(context_, batch) == 0);
    llama_batch_free(batch);
    std::vector<float> all;
    for (int32_t i = 0; i < kTokens; ++i) {
      const float *row = llama_get_logits_ith(context_, i);
      all.insert(all.end(), row, row + n_vocab_);
    }
    return all;
  }

 private:
  Decoded record(TapRecorder &recorder, size_t n_taps, int32_t first_token) {
    Decoded decoded;
    decoded.features.resize(n_taps * static_cast<size_t>(kTokens * n_embd_), -1.0f);
    recorder.begin(decoded.features.data(), kTokens);
    decoded.logits = logits(first_token);
    decoded.is_complete = recorder.is_complete();
    recorder.end();
    return decoded;
  }

  TapRecorder recorder_;
  df2_taps *taps_;
  llama_context *context_;
  int32_t n_embd_;
  int32_t n_vocab_;
};

void check_same(const Decoded &a, const Decoded &b) {
  CHECK(a.is_complete && b.is_complete);
  CHECK(same_bits(a.features, b.features));
  CHECK(same_bits(a.logits, b.logits));
}

void test_model(llama_model *model) {
  df2_taps *taps = nullptr;
  CHECK(df2_taps_create(&taps) == DF2_OK);
  {
    Context with_callback(model, taps);
    const Decoded cut = with_callback.cut(kLayers);
    CHECK(n_cuts >= 3 * static_cast<int>(kLayers.size()));  // in each of three micro-batches
    Context plain(model, nullptr);
    for (int i = 0; i < 3; ++i) {  // llama.cpp computes the same graph again
      check_same(with_callback.whole(kLayers), cut);
      CHECK(n_cuts == 0);
      check_same(plain.whole(kLayers), cut);
    }
    // claims of an earlier decode mean nothing to one that reads nothing, or something else
    CHECK(same_bits(plain.logits(), cut.logits));
    check_same(plain.whole({1}), with_callback.cut({1}));
    CHECK(same_bits(with_callback.logits(), cut.logits));
    CHECK(n_cuts == 0);
    // a layer that does not exist is missed
    CHECK(!plain.whole({9}).is_complete);
    CHECK(!with_callback.cut({9}).is_complete);
  }
  df2_taps_free(taps);
}

// A decode that shows no hidden states is an error; so are taps of two sessions at once.
void test_sources(llama_model *model) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 256;
  llama_context *context = llama_init_from_model(model, params);
  df2_taps taps;
  std::vector<float> features(static_cast<size_t>(llama_model_n_embd(model)));
  df2::TapRequest request = {context, "llama", {1}, llama_model_n_embd(model), llama_model_n_layer(model), &taps, true};
  const auto status_of = [](const std::function<void()> &work) {
    try {
      work();
      return DF2_OK;
    } catch (const df2::Error &error) {
      return error.status();
    }
  };
  for (const bool may_use_rules : {true, false}) {
    request.may_use_rules = may_use_rules;
    const std::unique_ptr<df2::TapSource> source = df2::make_tap_source(request);
    CHECK(taps.is_read == !may_use_rules);
    CHECK(status_of([&] { source->read(features.data(), 1, [] {}); }) == DF2_EBACKEND);
  }
  CHECK(!taps.is_read);
  const std::unique_ptr<df2::TapSource> source = df2::make_tap_source(request);
  CHECK(status_of([&] { df2::make_tap_source(request); }) == DF2_EINVAL);
  CHECK(taps.is_read);
  llama_free(context);
}

// Contexts for several sequences, whose graphs are cut into as many parts, are probed without ending the process.
void test_several_sequences(llama_model *model) {
  for (const uint32_t n_seq : {1, 2, 3}) {
    for (const uint32_t n_ubatch : {1, 5, 512}) {
      llama_context_params params = llama_context_default_params();
      params.n_ctx = 256 * n_seq;
      params.n_seq_max = n_seq;
      params.n_ubatch = n_ubatch;
      params.kv_unified = false;
      llama_context *context = llama_init_from_model(model, params);
      df2_target *target = nullptr;
      df2_session *session = nullptr;
      const int32_t prompt[] = {5, 12, 19};
      int32_t token = 0;
      df2_step_result result;
      CHECK_STATUS(df2_target_attach(&target, context, nullptr), DF2_OK);
      CHECK_STATUS(df2_session_create(&session, target, nullptr, nullptr), DF2_OK);
      CHECK_STATUS(df2_session_prefill(session, prompt, 3), DF2_OK);
      CHECK_STATUS(df2_session_step(session, &token, 1, &result), DF2_OK);
      df2_session_free(session);
      df2_target_free(target);
      llama_free(context);
    }
  }
}

// Graphs of a context outlive what read their hidden states.
void test_after_the_recorder(llama_model *model) {
  Context plain(model, nullptr);
  const std::vector<float> expected = plain.logits();
  for (int i = 0; i < 3; ++i) {
    {
      TapRecorder recorder;
      recorder.select(kLayers, llama_model_n_embd(model), TapForm::kRow);
      std::vector<float> features(kLayers.size() * static_cast<size_t>(kTokens * llama_model_n_embd(model)));
      recorder.begin(features.data(), kTokens);
      const TapScope scope(&recorder);
      CHECK(same_bits(plain.logits(), expected));
      CHECK(recorder.is_complete());
    }
    CHECK(same_bits(plain.logits(), expected));
  }
}

// Decodes on several threads at once, of which some read hidden states, do not meet.
void test_threads(llama_model *model) {
  constexpr size_t kThreads = 4;
  std::vector<Decoded> expected;
  {
    Context context(model, nullptr);
    for (size_t i = 0; i < kThreads; ++i) {
      expected.push_back(context.whole(kLayers, static_cast<int32_t>(5 + i)));
    }
  }
  std::vector<std::thread> threads;
  std::array<int, kThreads> n_wrong = {};
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      Context context(model, nullptr);
      const auto first_token = static_cast<int32_t>(5 + i);
      for (int round = 0; round < 20; ++round) {
        if (i == 3) {
          n_wrong[i] += same_bits(context.logits(first_token), expected[i].logits) ? 0 : 1;
          continue;
        }
        const Decoded decoded = context.whole(kLayers, first_token);
        n_wrong[i] += decoded.is_complete && same_bits(decoded.features, expected[i].features) &&
                              same_bits(decoded.logits, expected[i].logits)
                          ? 0
                          : 1;
      }
    });
  }
  for (size_t i = 0; i < kThreads; ++i) {
    threads[i].join();
    CHECK(n_wrong[i] == 0);
  }
}

// -- Nodes ------------------------------------------------------------------------------------------------------------

constexpr int64_t kWidth = 37;
constexpr int64_t kRows = 5;

ggml_tensor *input(ggml_context *context, int64_t ne0, int64_t ne1, int64_t ne2 = 1) {
  return ggml_new_tensor_3d(context, GGML_TYPE_F32, ne0, ne1, ne2);
}

void fill_sources(ggml_tensor *node) {
  for (int i = 0; i < 2 && node->src[i] != nullptr; ++i) {
    ggml_tensor *source = node->src[i]->view_src != nullptr ? node->src[i]->view_src : node->src[i];
    const std::vector<float> values = noise(static_cast<size_t>(ggml_nelements(source)), 20 + static_cast<uint32_t>(i));
    ggml_backend_tensor_set(source, values.data(), 0, ggml_nbytes(source));
  }
}

// Computes a node as if it were the output of layer 6, with and without its being read. Returns the rows, empty if they
// were not all read; the node's own values must be ggml's.
std::vector<float> read_node(const Build &build, int64_t n_rows, TapForm form) {
  const std::vector<float> expected = compute(build, fill_sources, 1);
  const Build named = [&](ggml_context *context) {
    ggml_tensor *node = build(context);
    ggml_set_name(node, "l_out-6");
    return node;
  };
  std::vector<float> first;
  for (int n_threads = 1; n_threads <= 3; ++n_threads) {
    TapRecorder recorder;
    recorder.select({7}, kWidth, form);
    std::vector<float> features(static_cast<size_t>(kWidth * n_rows), -1.0f);
    recorder.begin(features.data(), n_rows);
    {
      const TapScope scope(&recorder);
      CHECK(same_bits(compute(named, fill_sources, n_threads), expected));
    }
    features = recorder.is_complete() ? features : std::vector<float>();
    first = n_threads == 1 ? features : first;
    CHECK(same_bits(features, first));
  }
  CHECK(first.empty() || same_bits(first, {expected.begin(), expected.begin() + kWidth * n_rows}));
  return first;
}

bool is_read(const Build &build, int64_t n_rows = kRows, TapForm form = TapForm::kRow) {
  return !read_node(build, n_rows, form).empty();
}

void test_known_nodes() {
  const auto rows = [](ggml_context *context) { return input(context, kWidth, kRows); };
  CHECK(is_read([&](ggml_context *c) { return ggml_add(c, rows(c), rows(c)); }));
  CHECK(is_read([&](ggml_context *c) { return ggml_add(c, rows(c), input(c, kWidth, 1)); }));  // a control vector
  CHECK(is_read([&](ggml_context *c) { return ggml_mul(c, rows(c), rows(c)); }));
  CHECK(is_read([&](ggml_context *c) { return ggml_mul(c, rows(c), input(c, 1, 1)); }));
  CHECK(is_read([&](ggml_context *c) { return ggml_scale(c, rows(c), 0.3f); }));
  // three streams, one behind the other
  const Build streams = [](ggml_context *c) {
    return ggml_concat(c, input(c, kWidth, kRows), input(c, kWidth, kRows, 2), 2);
  };
  CHECK(is_read(streams, kRows, TapForm::kFirstStream));
  CHECK(is_read([&](ggml_context *c) { return ggml_add(c, input(c, kWidth, kRows, 3), input(c, kWidth, 1)); }, kRows,
                TapForm::kFirstStream));
}

// What is not understood is left to ggml, and missed.
void test_unknown_nodes() {
  const auto rows = [](ggml_context *context) { return input(context, kWidth, kRows); };
  CHECK(!is_read([&](ggml_context *c) { return ggml_scale_bias(c, rows(c), 0.3f, 1.0f); }));
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, rows(c), input(c, 1, kRows)); }));  // a number per row
  CHECK(!is_read([&](ggml_context *c) { return ggml_sqr(c, rows(c)); }));
  CHECK(!is_read([&](ggml_context *c) { return ggml_sub(c, rows(c), rows(c)); }));
  CHECK(!is_read([&](ggml_context *c) {
    ggml_tensor *wide = input(c, 2 * kWidth, kRows);
    return ggml_add(c, ggml_view_2d(c, wide, kWidth, kRows, wide->nb[1], 0), rows(c));
  }));
  // other shapes than the form says: other widths, streams, more rows than were decoded
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, input(c, kWidth + 1, kRows), input(c, kWidth + 1, 1)); }));
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, input(c, kWidth, kRows, 2), input(c, kWidth, 1)); }));
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, rows(c), rows(c)); }, kRows - 1));
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, rows(c), rows(c)); }, kRows + 1));
  CHECK(!is_read([&](ggml_context *c) { return ggml_add(c, input(c, kWidth, 4, kRows), input(c, kWidth, 1)); }, kRows,
                 TapForm::kStreamMean));
}

// A recorder goes on after a decode that failed, and takes no more rows than were decoded, in however many graphs.
void test_recordings() {
  const Build build = [](ggml_context *context) {
    ggml_tensor *node = ggml_add(context, input(context, kWidth, kRows), input(context, kWidth, kRows));
    ggml_set_name(node, "l_out-6");
    return node;
  };
  TapRecorder recorder;
  recorder.select({7}, kWidth, TapForm::kRow);
  std::vector<float> features(static_cast<size_t>(2 * kRows * kWidth), -1.0f);
  const std::vector<float> untouched(static_cast<size_t>(kRows * kWidth), -1.0f);
  const TapScope scope(&recorder);
  for (int i = 0; i < 2; ++i) {
    recorder.begin(features.data(), kRows);
    const std::vector<float> expected = compute(build, fill_sources, 2);
    CHECK(recorder.is_complete());
    CHECK(std::equal(expected.begin(), expected.end(), features.begin()));
    compute(build, fill_sources, 2);
    CHECK(!recorder.is_complete());
    CHECK(std::equal(untouched.begin(), untouched.end(), features.begin() + kRows * kWidth));
    recorder.end();
    // nothing is read between decodes, by either way
    std::fill(features.begin(), features.end(), -1.0f);
    compute(build, fill_sources, 2);
    const ggml_context_ptr context = make_context();
    CHECK(!recorder.on_tensor(build(context.get()), true));
    CHECK(features[0] == -1.0f);
  }
  recorder.select({}, 0, TapForm::kRow);
  recorder.begin(features.data(), kRows);
  CHECK(!recorder.is_complete());
}

// A plan that outlives its recording computes, and copies nothing.
void test_old_plan() {
  const ggml_context_ptr context = make_context();
  ggml_tensor *node = ggml_add(context.get(), input(context.get(), kWidth, kRows), input(context.get(), kWidth, kRows));
  ggml_set_name(node, "l_out-6");
  ggml_cgraph *graph = ggml_new_graph_custom(context.get(), 16, false);
  ggml_build_forward_expand(graph, node);
  const ggml_backend_ptr backend(ggml_backend_cpu_init());
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
  fill_sources(node);
  ggml_backend_graph_plan_t plan = nullptr;
  {
    TapRecorder recorder;
    recorder.select({7}, kWidth, TapForm::kRow);
    std::vector<float> features(static_cast<size_t>(kRows * kWidth));
    recorder.begin(features.data(), kRows);
    const TapScope scope(&recorder);
    plan = ggml_backend_graph_plan_create(backend.get(), graph);
    CHECK(ggml_backend_graph_plan_compute(backend.get(), plan) == GGML_STATUS_SUCCESS);
    CHECK(recorder.is_complete());
  }
  CHECK(ggml_backend_graph_plan_compute(backend.get(), plan) == GGML_STATUS_SUCCESS);
  ggml_backend_graph_plan_free(backend.get(), plan);
}

enum class Reader { kNorm, kRows, kFusedNorm };

// Computes a reader of streams; what the rule read of them meanwhile, empty if not all.
std::vector<float> read_streams(ggml_tensor *streams, ggml_context *context, Reader reader, int n_threads) {
  const int64_t n_rows = streams->ne[2];
  ggml_tensor *flat = ggml_reshape_2d(context, streams, streams->ne[0] * streams->ne[1], n_rows);
  ggml_tensor *ids = ggml_new_tensor_1d(context, GGML_TYPE_I32, 1);
  ggml_tensor *node = reader == Reader::kRows ? ggml_get_rows(context, flat, ids) : ggml_rms_norm(context, flat, 1e-6f);
  node = reader == Reader::kFusedNorm ? ggml_mul(context, node, input(context, flat->ne[0], 1)) : node;
  ggml_cgraph *graph = ggml_new_graph_custom(context, 16, false);
  ggml_build_forward_expand(graph, node);
  CHECK(df2::has_stream_reader(graph, streams) == (reader != Reader::kFusedNorm));
  const ggml_backend_ptr backend(ggml_backend_cpu_init());
  const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(context, backend.get()));
  const std::vector<float> values = noise(static_cast<size_t>(ggml_nelements(streams)), 30);
  ggml_backend_tensor_set(streams, values.data(), 0, ggml_nbytes(streams));
  ggml_backend_tensor_memset(ids, 0, 0, ggml_nbytes(ids));
  ggml_backend_cpu_set_n_threads(backend.get(), n_threads);
  const auto run = [&] {
    std::vector<float> result(static_cast<size_t>(ggml_nelements(node)), -1.0f);
    ggml_backend_tensor_set(node, result.data(), 0, ggml_nbytes(node));
    CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(node, result.data(), 0, ggml_nbytes(node));
    return result;
  };
  const std::vector<float> expected = run();
  TapRecorder recorder;
  recorder.select({7}, kWidth, TapForm::kStreamMean);
  std::vector<float> by_rule(static_cast<size_t>(kWidth * n_rows), -1.0f);
  std::vector<float> by_callback = by_rule;
  recorder.begin(by_rule.data(), n_rows);
  {
    const TapScope scope(&recorder);
    CHECK(same_bits(run(), expected));  // by ggml, as before
  }
  const bool is_read = recorder.is_complete();
  recorder.begin(by_callback.data(), n_rows);
  CHECK(recorder.on_tensor(streams, true) && recorder.on_tensor(streams, false) && recorder.is_complete());
  recorder.end();
  CHECK(same_bits(run(), expected));  // the claim that is left reads nothing
  CHECK(!is_read || same_bits(by_rule, by_callback));
  return is_read ? by_rule : std::vector<float>();
}

// The mean of streams. With as many tokens as streams their shape alone would not tell.
void test_stream_mean(bool has_rules) {
  constexpr int64_t kStreams = 4;
  for (const int64_t n_rows : {1, 4, 5}) {
    const std::vector<float> values = noise(static_cast<size_t>(kWidth * kStreams * n_rows), 30);
    for (const Reader reader : {Reader::kNorm, Reader::kRows, Reader::kFusedNorm}) {
      for (int n_threads = 1; n_threads <= 3; ++n_threads) {
        const ggml_context_ptr context = make_context();
        ggml_tensor *streams = input(context.get(), kWidth, kStreams, n_rows);
        ggml_set_name(streams, "l_out-6");
        const std::vector<float> means = read_streams(streams, context.get(), reader, n_threads);
        CHECK(means.empty() == (!has_rules || reader == Reader::kFusedNorm));
        for (size_t at = 0; at < means.size(); ++at) {
          const float *x = values.data() + at / kWidth * kStreams * kWidth + at % kWidth;
          CHECK(means[at] == (((x[0] + x[kWidth]) + x[2 * kWidth]) + x[3 * kWidth]) * 0.25f);
        }
      }
    }
  }
}

void test_names() {
  CHECK(df2::tapped_layer("l_out-0") == 1);
  CHECK(df2::tapped_layer("l_out-31") == 32);
  for (const char *name : {"l_out", "l_out-", "l_out-x", "l_out-3 (view)", "l_out-99999999999999999999", "l_out--1",
                           "mtp_l_out-3", "result_norm", ""}) {
    CHECK(df2::tapped_layer(name) == -1);
  }
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    return 2;
  }
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  CHECK(df2_kernels_enable() == DF2_OK);
  llama_backend_init();
  test_names();
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  CHECK(df2_kernels_info_get(&info) == DF2_OK);
  test_stream_mean(info.state == DF2_KERNELS_ACTIVE);
  if (info.state != DF2_KERNELS_ACTIVE) {
    std::printf("taps: no kernels for this CPU, so no rules\n");
    return report("taps");
  }
  test_recordings();
  test_old_plan();
  test_known_nodes();
  test_unknown_nodes();
  llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  CHECK(model != nullptr);
  if (model != nullptr) {
    test_model(model);
    test_after_the_recorder(model);
    test_sources(model);
    test_several_sequences(model);
    test_threads(model);
    llama_model_free(model);
  }
  return report("taps");
}
