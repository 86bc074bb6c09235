// The C API end to end on a tiny target: whatever the drafter's shape and the draft length, the text is the target's;
// rewinding to any position is as good as never having gone further; misuse leaves the session usable.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "check.h"
#include "core/draft_length.h"
#include "dflash2.h"
#include "llama.h"
#include "tiny_drafter.h"

namespace {

std::string target_path;
const std::string drafter_path = "test_session_drafter.gguf";
const std::vector<int32_t> kPrompt = {7, 23, 99, 4, 150, 31, 31, 8, 77, 12, 140, 66};

struct Pair {
  df2_target *target = nullptr;
  df2_drafter *drafter = nullptr;
  df2_session *session = nullptr;

  ~Pair() {
    df2_session_free(session);
    df2_drafter_free(drafter);
    df2_target_free(target);
  }
};

void open_pair(Pair *pair, int32_t n_draft, int32_t n_ctx = 128, int32_t n_batch = 0) {
  df2_target_options target_options = DF2_TARGET_OPTIONS_INIT;
  target_options.n_ctx = n_ctx;
  target_options.n_batch = n_batch;
  target_options.n_threads = 2;
  CHECK_STATUS(df2_target_open(&pair->target, target_path.c_str(), &target_options), DF2_OK);
  if (n_draft >= -1) {
    CHECK_STATUS(df2_drafter_load(&pair->drafter, drafter_path.c_str(), nullptr), DF2_OK);
  }
  df2_session_options options = DF2_SESSION_OPTIONS_INIT;
  options.n_draft = n_draft >= -1 ? n_draft : 0;
  options.ignore_end = 1;
  CHECK_STATUS(df2_session_create(&pair->session, pair->target, pair->drafter, &options), DF2_OK);
}

std::vector<int32_t> generate(df2_session *session, int32_t n) {
  std::vector<int32_t> out;
  while (static_cast<int32_t>(out.size()) < n) {
    int32_t tokens[DF2_MAX_DRAFT + 1];
    df2_step_result result;
    const int32_t status = df2_session_step(session, tokens, n - static_cast<int32_t>(out.size()), &result);
    CHECK_STATUS(status, DF2_OK);
    if (status != DF2_OK) {
      break;
    }
    CHECK(result.n_accepted <= result.n_drafted && result.n_accepted <= result.n_tokens);
    out.insert(out.end(), tokens, tokens + result.n_tokens);
  }
  return out;
}

std::vector<int32_t> plain_text(int32_t n) {
  Pair pair;
  open_pair(&pair, -2);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
  return generate(pair.session, n);
}

void test_shape(const TinyDrafter &shape, const std::vector<int32_t> &expected) {
  write_tiny_drafter(shape, target_path, drafter_path);
  for (const int32_t n_draft : {-1, 0, 1, 2, shape.block_size - 1}) {
    if (n_draft >= shape.block_size) {
      continue;
    }
    Pair pair;
    open_pair(&pair, n_draft);
    CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
    const std::vector<int32_t> text = generate(pair.session, static_cast<int32_t>(expected.size()));
    CHECK(text == expected);
    df2_stats stats = {};
    stats.struct_size = sizeof(stats);
    CHECK_STATUS(df2_session_stats_get(pair.session, &stats), DF2_OK);
    CHECK(stats.n_generated == expected.size());
    CHECK(stats.n_cycles + stats.n_accepted + 1 == stats.n_generated);
    CHECK(n_draft <= 0 || stats.n_drafted > 0);
  }
}

void test_shapes() {
  const std::vector<int32_t> expected = plain_text(40);
  TinyDrafter shape;
  test_shape(shape, expected);
  shape.version = 1;
  test_shape(shape, expected);
  shape = TinyDrafter();
  shape.block_size = 16;
  shape.conv_kernel_size = 3;
  shape.conv_group_size = 8;
  shape.logit_softcap = 20.0f;
  shape.embedding_scale = 2.0f;
  shape.value_scale = 0.5f;
  test_shape(shape, expected);
  shape = TinyDrafter();
  shape.n_layer = 3;
  shape.window = 8;
  shape.layer_has_window = {true, false, true};
  shape.is_causal = true;
  shape.has_sinks = true;
  shape.has_biases = true;
  shape.has_post_norms = true;
  test_shape(shape, expected);
  shape = TinyDrafter();
  shape.n_vocab_draft = 40;
  shape.rope_scaling = "yarn";
  shape.conv_kernel_size = 5;
  shape.conv_group_size = 64;
  shape.selector_rank = 3;
  shape.selector_top_k = 1;
  test_shape(shape, expected);
  shape = TinyDrafter();
  shape.taps = {4};  // the last layer's output
  shape.rope_scaling = "linear";
  shape.block_size = 2;
  shape.conv_kernel_size = 1;
  shape.conv_group_size = 1;
  test_shape(shape, expected);
}

std::vector<float> draft_logits(df2_session *session, int32_t n_draft) {
  df2_draft draft = {};
  draft.struct_size = sizeof(draft);
  df2_draft_options options = DF2_DRAFT_OPTIONS_INIT;
  options.n_draft = n_draft;
  CHECK_STATUS(df2_session_draft(session, &options, &draft), DF2_OK);
  CHECK(draft.n_draft == n_draft);
  return draft.logits == nullptr ? std::vector<float>()
                                 : std::vector<float>(draft.logits, draft.logits + n_draft * draft.n_vocab);
}

// Drafting after a rewind to any position equals drafting in a session that never went further.
void test_rewind_everywhere(const TinyDrafter &shape) {
  write_tiny_drafter(shape, target_path, drafter_path);
  Pair pair;
  open_pair(&pair, 7);
  const auto n_prompt = static_cast<int32_t>(kPrompt.size());
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), n_prompt), DF2_OK);
  const std::vector<int32_t> text = generate(pair.session, 30);
  std::vector<int32_t> sequence = kPrompt;
  sequence.insert(sequence.end(), text.begin(), text.end());
  // the rewound sessions' K/V rows come from differently shaped batches, whose rounding differs
  constexpr float kTolerance = 5e-2f;
  for (int32_t n = static_cast<int32_t>(sequence.size()) - 1; n >= 2; --n) {
    CHECK_STATUS(df2_session_rewind(pair.session, n), DF2_OK);
    CHECK(df2_session_n_tokens(pair.session) == n);
    const std::vector<float> rewound = draft_logits(pair.session, 7);
    if (n % 5 != 0) {
      continue;  // opening a fresh pair for each would take minutes under the sanitizers
    }
    Pair fresh;
    open_pair(&fresh, 7);
    CHECK_STATUS(df2_session_prefill(fresh.session, sequence.data(), n), DF2_OK);
    generate(fresh.session, 1);
    CHECK_STATUS(df2_session_rewind(fresh.session, n), DF2_OK);
    const std::vector<float> expected = draft_logits(fresh.session, 7);
    CHECK(rewound.size() == expected.size());
    float worst = 0.0f;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(rewound[i] - expected[i]));
    }
    CHECK(worst < kTolerance);
  }
  CHECK_STATUS(df2_session_rewind(pair.session, 0), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), n_prompt), DF2_OK);
  CHECK(generate(pair.session, 30) == text);
}

// A session whose draft length is chosen asks for it, verifies what the choice leaves of the draft, and tells what came
// of it: its first cycles are those of a choice that learns, whatever the machine.
void test_chosen_length() {
  const TinyDrafter shape;
  write_tiny_drafter(shape, target_path, drafter_path);
  Pair pair;
  open_pair(&pair, -1);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
  generate(pair.session, 1);

  // plain decoding is measured first
  df2::DraftLength length(shape.block_size - 1);
  int32_t tokens[DF2_MAX_DRAFT + 1];
  df2_step_result result;
  df2_draft_options options = DF2_DRAFT_OPTIONS_INIT;
  while ((options.n_draft = length.choose()) == 0) {
    length.observe(nullptr, 0, 0, 0, 0, 0, 1000);
    CHECK_STATUS(df2_session_step(pair.session, tokens, DF2_MAX_DRAFT + 1, &result), DF2_OK);
    CHECK(result.n_drafted == 0);
  }
  df2_draft draft = {};
  draft.struct_size = sizeof(draft);
  CHECK_STATUS(df2_session_draft(pair.session, &options, &draft), DF2_OK);
  const int32_t n_worth = length.cut(draft.tokens_q, draft.n_draft, 0);
  CHECK(n_worth > 0 && n_worth < draft.n_draft);
  CHECK_STATUS(df2_session_step(pair.session, tokens, DF2_MAX_DRAFT + 1, &result), DF2_OK);
  CHECK(result.n_drafted == n_worth);
}

// How many tokens the first cycle of a session drafts that keeps its profile in this folder; then some more.
int32_t first_draft(const std::string &folder) {
  Pair pair;
  open_pair(&pair, 0);
  df2_session_free(pair.session);
  df2_session_options options = DF2_SESSION_OPTIONS_INIT;
  options.profiles = folder.c_str();
  CHECK_STATUS(df2_session_create(&pair.session, pair.target, pair.drafter, &options), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
  generate(pair.session, 1);
  int32_t tokens[DF2_MAX_DRAFT + 1];
  df2_step_result result;
  CHECK_STATUS(df2_session_step(pair.session, tokens, DF2_MAX_DRAFT + 1, &result), DF2_OK);
  df2_session_save_profile(pair.session);
  return result.n_drafted;
}

void test_profiles() {
  const TinyDrafter shape;
  write_tiny_drafter(shape, target_path, drafter_path);
  df2_session_save_profile(nullptr);
  std::string folder = (std::filesystem::temp_directory_path() / "profiles-XXXXXX").string();
  CHECK(mkdtemp(folder.data()) != nullptr);
  first_draft(folder);
  const std::vector<std::filesystem::path> files = {std::filesystem::directory_iterator(folder),
                                                    std::filesystem::directory_iterator()};
  CHECK(files.size() == 1);

  // another program has found that all drafts are right and cost next to nothing
  df2::DraftProfile good(shape.block_size - 1);
  good.plain_us = 1000.0;
  for (size_t n = 1; n < good.verify.size(); ++n) {
    good.draft[n] = {0.1, 5.0};
    good.verify[n] = {1.0, 5.0};
    good.gains[n] = 1.0;
  }
  good.chances.fill({100.0, 100.0});
  good.n_drafts = 64.0;
  good.tokens = 5.0;
  good.cost = 1.1;
  std::ifstream file(files[0], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::ofstream(files[0], std::ios::binary) << text.substr(0, text.find("\n\n") + 2) << good.text();
  CHECK(first_draft(folder) > 0);
  std::filesystem::remove_all(folder);
}

void test_chunked_prefill() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 70; ++i) {
    prompt.push_back(6 + (i * 37) % 150);
  }
  Pair whole;
  open_pair(&whole, 4);
  CHECK_STATUS(df2_session_prefill(whole.session, prompt.data(), 70), DF2_OK);
  const std::vector<int32_t> expected = generate(whole.session, 20);
  // a batch shorter than the prompt, and the prompt in pieces
  Pair pieces;
  open_pair(&pieces, 4, 128, 16);
  CHECK_STATUS(df2_session_prefill(pieces.session, prompt.data(), 33), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pieces.session, prompt.data() + 33, 1), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pieces.session, prompt.data() + 34, 36), DF2_OK);
  CHECK(generate(pieces.session, 20) == expected);
}

void test_full_context() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  Pair pair;
  open_pair(&pair, 7, 32);
  const auto n_ctx = static_cast<int32_t>(llama_n_ctx_seq(df2_target_context(pair.target)));
  std::vector<int32_t> prompt(static_cast<size_t>(n_ctx) + 1, 9);
  CHECK_STATUS(df2_session_prefill(pair.session, prompt.data(), n_ctx + 1), DF2_ECONTEXT);
  CHECK(df2_session_n_tokens(pair.session) == 0);
  CHECK_STATUS(df2_session_prefill(pair.session, prompt.data(), n_ctx - 4), DF2_OK);
  // the context holds n_ctx decoded tokens, and one more has been picked from the last logits
  generate(pair.session, 5);
  int32_t token;
  df2_step_result result;
  CHECK_STATUS(df2_session_step(pair.session, &token, 1, &result), DF2_ECONTEXT);
  CHECK(result.n_tokens == 0);
  CHECK_STATUS(df2_session_rewind(pair.session, 10), DF2_OK);
  CHECK(generate(pair.session, 8).size() == 8);
}

void misuse_drafts(df2_session *session) {
  df2_draft draft = {};
  draft.struct_size = sizeof(draft);
  df2_draft_options wrong = DF2_DRAFT_OPTIONS_INIT;
  wrong.n_draft = 8;
  CHECK_STATUS(df2_session_draft(session, &wrong, &draft), DF2_EINVAL);
  wrong = DF2_DRAFT_OPTIONS_INIT;
  wrong.temperature = 1.0f;
  CHECK_STATUS(df2_session_draft(session, &wrong, &draft), DF2_EINVAL);  // no uniforms
  const float too_large = 1.0f;
  wrong.uniforms = &too_large;
  CHECK_STATUS(df2_session_draft(session, &wrong, &draft), DF2_EINVAL);
  wrong.temperature = -1.0f;
  CHECK_STATUS(df2_session_draft(session, &wrong, &draft), DF2_EINVAL);
}

// A context has one session, and sessions refuse options they do not know.
void misuse_contexts(const Pair &pair) {
  df2_session *second = nullptr;
  CHECK_STATUS(df2_session_create(&second, pair.target, pair.drafter, nullptr), DF2_EINVAL);
  CHECK(second == nullptr);
  // nor through another target on the same context
  df2_target *again = nullptr;
  CHECK_STATUS(df2_target_attach(&again, df2_target_context(pair.target), nullptr), DF2_OK);
  CHECK_STATUS(df2_session_create(&second, again, nullptr, nullptr), DF2_EINVAL);
  df2_target_free(again);
  struct {
    df2_session_options options;
    int32_t from_the_future;
  } newer = {DF2_SESSION_OPTIONS_INIT, 1};
  newer.options.struct_size = sizeof(newer);
  CHECK_STATUS(df2_session_create(&second, pair.target, pair.drafter, &newer.options), DF2_EINVAL);
  CHECK(second == nullptr);
}

void misuse_files() {
  df2_drafter_options version = DF2_DRAFTER_OPTIONS_INIT;
  version.version = 1;
  df2_drafter *drafter = nullptr;
  CHECK_STATUS(df2_drafter_load(&drafter, drafter_path.c_str(), &version), DF2_EMISMATCH);
  CHECK_STATUS(df2_drafter_load(&drafter, target_path.c_str(), nullptr), DF2_EFORMAT);
  CHECK_STATUS(df2_drafter_load(&drafter, "no/such/file.gguf", nullptr), DF2_EIO);
  CHECK_STATUS(df2_drafter_load(&drafter, ".", nullptr), DF2_EIO);
  CHECK(drafter == nullptr);
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_open(&target, drafter_path.c_str(), nullptr), DF2_EFORMAT);
  CHECK_STATUS(df2_target_attach(&target, nullptr, nullptr), DF2_EINVAL);
  CHECK(target == nullptr);
}

void test_misuse() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  Pair pair;
  open_pair(&pair, 3);
  int32_t tokens[4];
  df2_step_result result;
  CHECK_STATUS(df2_session_step(pair.session, tokens, 4, &result), DF2_EINVAL);  // nothing prefilled
  const int32_t outside[] = {1, 160};
  CHECK_STATUS(df2_session_prefill(pair.session, outside, 2), DF2_EINVAL);
  CHECK_STATUS(df2_session_prefill(pair.session, outside, 0), DF2_EINVAL);
  CHECK_STATUS(df2_session_prefill(pair.session, nullptr, 3), DF2_EINVAL);
  CHECK_STATUS(df2_session_set_n_draft(pair.session, 8), DF2_EINVAL);
  CHECK_STATUS(df2_session_set_n_draft(pair.session, -2), DF2_EINVAL);
  CHECK_STATUS(df2_session_rewind(pair.session, 1), DF2_EINVAL);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), 5), DF2_OK);
  df2_draft draft = {};
  draft.struct_size = sizeof(draft);
  CHECK_STATUS(df2_session_draft(pair.session, nullptr, &draft), DF2_EINVAL);  // no anchor yet
  CHECK_STATUS(df2_session_step(pair.session, tokens, 0, &result), DF2_EINVAL);
  CHECK_STATUS(df2_session_step(pair.session, nullptr, 4, &result), DF2_EINVAL);
  CHECK_STATUS(df2_session_step(nullptr, tokens, 4, &result), DF2_EINVAL);
  CHECK_STATUS(df2_session_step(pair.session, tokens, 4, &result), DF2_OK);
  misuse_drafts(pair.session);
  df2_stats stats = {};
  CHECK_STATUS(df2_session_stats_get(pair.session, &stats), DF2_EINVAL);  // struct_size not set
  misuse_contexts(pair);
  misuse_files();
  int32_t n_ids = 0;
  CHECK_STATUS(df2_target_tokenize(pair.target, "abc", 3, true, true, tokens, 0, &n_ids), DF2_OK);
  CHECK(n_ids > 0);
  // no token of the tiny vocabulary stands for this character, and llama.cpp would end the process
  CHECK_STATUS(df2_target_tokenize(pair.target, "\xc3\xa9", 2, true, true, tokens, 4, &n_ids), DF2_EINVAL);
  // after all that the session still works
  CHECK(generate(pair.session, 6).size() == 6);
}

void test_mismatch() {
  Pair pair;
  df2_target_options options = DF2_TARGET_OPTIONS_INIT;
  options.n_ctx = 64;
  CHECK_STATUS(df2_target_open(&pair.target, target_path.c_str(), &options), DF2_OK);
  TinyDrafter shape;
  shape.taps = {1, 9};  // the target has 4 layers
  write_tiny_drafter(shape, target_path, drafter_path);
  CHECK_STATUS(df2_drafter_load(&pair.drafter, drafter_path.c_str(), nullptr), DF2_OK);
  CHECK_STATUS(df2_session_create(&pair.session, pair.target, pair.drafter, nullptr), DF2_EMISMATCH);
  CHECK(pair.session == nullptr);
  // a head of its own does not help a narrower drafter that looks tokens up in the target's embeddings
  df2_drafter_free(pair.drafter);
  pair.drafter = nullptr;
  shape = TinyDrafter();
  shape.n_embd = 32;
  shape.n_vocab_draft = 40;
  write_tiny_drafter(shape, target_path, drafter_path);
  CHECK_STATUS(df2_drafter_load(&pair.drafter, drafter_path.c_str(), nullptr), DF2_OK);
  CHECK_STATUS(df2_session_create(&pair.session, pair.target, pair.drafter, nullptr), DF2_EMISMATCH);
  // the target survives the refusal
  CHECK_STATUS(df2_session_create(&pair.session, pair.target, nullptr, nullptr), DF2_OK);
}

// With the same seed a sampler chain picks the same tokens with and without drafting.
void test_sampling() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  std::vector<int32_t> texts[2];
  for (const int32_t n_draft : {0, 5}) {
    Pair pair;
    open_pair(&pair, n_draft);
    llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(20));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(1.0f));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(42));
    CHECK_STATUS(df2_session_set_sampler(pair.session, chain), DF2_OK);
    CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
    texts[n_draft > 0 ? 1 : 0] = generate(pair.session, 40);
    CHECK_STATUS(df2_session_set_sampler(pair.session, nullptr), DF2_OK);
    llama_sampler_free(chain);
  }
  CHECK(texts[0] == texts[1]);
}

// llama.cpp gives up in the middle of a decode: the session is as before, and goes on as if nothing had happened.
void test_failing_decode() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  const std::vector<int32_t> expected = plain_text(30);
  Pair pair;
  open_pair(&pair, 5);
  llama_context *context = df2_target_context(pair.target);
  int n_calls = 0;
  const auto fail_soon = [](void *payload) { return ++*static_cast<int *>(payload) > 3; };
  const auto n_prompt = static_cast<int32_t>(kPrompt.size());
  llama_set_abort_callback(context, fail_soon, &n_calls);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), n_prompt), DF2_EBACKEND);
  CHECK(df2_session_n_tokens(pair.session) == 0);
  llama_set_abort_callback(context, nullptr, nullptr);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), 8), DF2_OK);
  // a second prefill that fails takes nothing with it: not even the first one's logits, which are still to pick from
  n_calls = 0;
  llama_set_abort_callback(context, fail_soon, &n_calls);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data() + 8, n_prompt - 8), DF2_EBACKEND);
  CHECK(df2_session_n_tokens(pair.session) == 8);
  llama_set_abort_callback(context, nullptr, nullptr);
  const std::vector<int32_t> picked = generate(pair.session, 4);
  CHECK_STATUS(df2_session_rewind(pair.session, 0), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), 8), DF2_OK);
  CHECK(generate(pair.session, 4) == picked);
  CHECK_STATUS(df2_session_rewind(pair.session, 8), DF2_OK);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data() + 8, n_prompt - 8), DF2_OK);
  std::vector<int32_t> text = generate(pair.session, 7);
  for (int round = 0; round < 3; ++round) {
    n_calls = 0;
    llama_set_abort_callback(context, fail_soon, &n_calls);
    int32_t tokens[DF2_MAX_DRAFT + 1];
    df2_step_result result;
    const int32_t n_before = df2_session_n_tokens(pair.session);
    CHECK_STATUS(df2_session_step(pair.session, tokens, 6, &result), DF2_EBACKEND);
    CHECK(result.n_tokens == 0 && df2_session_n_tokens(pair.session) == n_before);
    llama_set_abort_callback(context, nullptr, nullptr);
    const std::vector<int32_t> more = generate(pair.session, 5);
    text.insert(text.end(), more.begin(), more.end());
  }
  const std::vector<int32_t> rest = generate(pair.session, 30 - static_cast<int32_t>(text.size()));
  text.insert(text.end(), rest.begin(), rest.end());
  CHECK(text == expected);
}

// Chains that llama.cpp itself would abort on, or throw from.
void test_bad_samplers() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  const std::vector<int32_t> expected = plain_text(20);
  Pair pair;
  open_pair(&pair, 5);
  CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
  std::vector<int32_t> text = generate(pair.session, 6);
  llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  llama_sampler_chain_add(chain, llama_sampler_init_temp(0.5f));  // selects nothing
  CHECK_STATUS(df2_session_set_sampler(pair.session, chain), DF2_OK);
  int32_t tokens[DF2_MAX_DRAFT + 1];
  df2_step_result result;
  for (int round = 0; round < 2; ++round) {
    CHECK_STATUS(df2_session_step(pair.session, tokens, 6, &result), DF2_EINVAL);
    CHECK(result.n_tokens == 0);
  }
  CHECK_STATUS(df2_session_set_sampler(pair.session, nullptr), DF2_OK);
  llama_sampler_free(chain);
  const std::vector<int32_t> rest = generate(pair.session, 14);
  text.insert(text.end(), rest.begin(), rest.end());
  CHECK(text == expected);
}

// A context of the program's own whose micro-batches are shorter than a prompt and a block.
void test_micro_batches() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  const std::vector<int32_t> expected = plain_text(30);
  df2_taps *taps = nullptr;
  CHECK_STATUS(df2_taps_create(&taps), DF2_OK);
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  llama_model *model = llama_model_load_from_file(target_path.c_str(), model_params);
  std::vector<float> logits[2];
  for (const uint32_t n_ubatch : {64u, 5u}) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 128;
    params.n_batch = 64;
    params.n_ubatch = n_ubatch;
    params.cb_eval = df2_taps_eval;
    params.cb_eval_user_data = taps;
    llama_context *context = llama_init_from_model(model, params);
    {
      Pair pair;
      CHECK_STATUS(df2_target_attach(&pair.target, context, taps), DF2_OK);
      CHECK_STATUS(df2_drafter_load(&pair.drafter, drafter_path.c_str(), nullptr), DF2_OK);
      df2_session_options options = DF2_SESSION_OPTIONS_INIT;
      options.n_draft = 7;
      options.ignore_end = 1;
      CHECK_STATUS(df2_session_create(&pair.session, pair.target, pair.drafter, &options), DF2_OK);
      CHECK_STATUS(df2_session_prefill(pair.session, kPrompt.data(), static_cast<int32_t>(kPrompt.size())), DF2_OK);
      CHECK(generate(pair.session, 30) == expected);
      logits[n_ubatch == 5u ? 1 : 0] = draft_logits(pair.session, 7);
    }
    llama_free(context);
  }
  CHECK(logits[0].size() == logits[1].size());
  for (size_t i = 0; i < logits[0].size(); ++i) {
    CHECK(std::abs(logits[0][i] - logits[1][i]) < 5e-2f);
  }
  llama_model_free(model);
  df2_taps_free(taps);
}

void test_memory_is_independent_of_context() {
  write_tiny_drafter(TinyDrafter(), target_path, drafter_path);
  df2_stats small = {};
  df2_stats large = {};
  small.struct_size = large.struct_size = sizeof(df2_stats);
  {
    Pair pair;
    open_pair(&pair, 4, 256);
    CHECK_STATUS(df2_session_stats_get(pair.session, &small), DF2_OK);
  }
  Pair pair;
  open_pair(&pair, 4, 4096);
  CHECK_STATUS(df2_session_stats_get(pair.session, &large), DF2_OK);
  CHECK(small.drafter_cache_bytes > 0 && small.drafter_cache_bytes == large.drafter_cache_bytes);
  CHECK(small.drafter_compute_bytes > 0 && small.drafter_compute_bytes == large.drafter_compute_bytes);
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TARGET.gguf\n", argv[0]);
    return 2;
  }
  target_path = argv[1];
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  test_chosen_length();
  test_profiles();
  test_shapes();
  TinyDrafter shape;
  test_rewind_everywhere(shape);
  shape.window = 8;
  shape.layer_has_window = {true, true};
  test_rewind_everywhere(shape);
  test_chunked_prefill();
  test_full_context();
  test_misuse();
  test_mismatch();
  test_sampling();
  test_failing_decode();
  test_bad_samplers();
  test_micro_batches();
  test_memory_is_independent_of_context();
  std::remove(drafter_path.c_str());
  return report("session");
}
