// The C API for sessions.
#include "core/session.h"

#include <cmath>

#include "api/guard.h"
#include "api/handles.h"
#include "api/options.h"

using df2::guard;
using df2::require;

namespace {

df2::Sampling read_sampling(const df2_draft_options &options) {
  require(std::isfinite(options.temperature) && options.temperature >= 0.0f,
          "temperature must be finite and at least 0");
  require(options.temperature == 0.0f || options.uniforms != nullptr,
          "a temperature above 0 needs uniforms, one number per drafted position");
  for (int32_t i = 0; options.temperature > 0.0f && i < options.n_draft; ++i) {
    require(options.uniforms[i] >= 0.0f && options.uniforms[i] < 1.0f, "uniforms must be in [0, 1)");
  }
  return {options.temperature, options.uniforms};
}

}  // namespace

extern "C" {

int32_t df2_session_options_init(df2_session_options *options, size_t size) {
  return guard([&] { df2::init_options(options, size, df2_session_options DF2_SESSION_OPTIONS_INIT); });
}

int32_t df2_session_create(df2_session **out, df2_target *target, const df2_drafter *drafter,
                           const df2_session_options *options) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    require(target != nullptr, "target is NULL");
    const df2::SessionOptions chosen =
        df2::to_session_options(df2::read_options(options, df2_session_options DF2_SESSION_OPTIONS_INIT));
    auto handle = std::make_unique<df2_session>();
    handle->session =
        std::make_unique<df2::Session>(*target->target, drafter != nullptr ? drafter->drafter : nullptr, chosen);
    *out = handle.release();
  });
}

void df2_session_free(df2_session *session) {
  delete session;
}

int32_t df2_session_set_sampler(df2_session *session, struct llama_sampler *sampler) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    session->session->set_sampler(sampler);
  });
}

int32_t df2_session_set_n_draft(df2_session *session, int32_t n_draft) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    session->session->set_n_draft(n_draft);
  });
}

int32_t df2_session_prefill(df2_session *session, const int32_t *tokens, int32_t n_tokens) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    require(n_tokens >= 1, "n_tokens must be at least 1");
    require(tokens != nullptr, "tokens is NULL");
    session->session->prefill(tokens, n_tokens);
  });
}

int32_t df2_session_step(df2_session *session, int32_t *tokens, int32_t capacity, df2_step_result *result) {
  return guard([&] {
    require(result != nullptr, "result is NULL");
    *result = {};
    require(session != nullptr, "session is NULL");
    require(tokens != nullptr && capacity >= 1, "tokens needs room for at least one token");
    *result = session->session->step(tokens, capacity);
  });
}

int32_t df2_session_rewind(df2_session *session, int32_t n_tokens) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    session->session->rewind(n_tokens);
  });
}

void df2_session_save_profile(df2_session *session) {
  if (session != nullptr) {
    session->session->save_profile();
  }
}

int32_t df2_session_n_tokens(const df2_session *session) {
  return session != nullptr ? session->session->n_tokens() : 0;
}

int32_t df2_draft_options_init(df2_draft_options *options, size_t size) {
  return guard([&] { df2::init_options(options, size, df2_draft_options DF2_DRAFT_OPTIONS_INIT); });
}

int32_t df2_session_draft(df2_session *session, const df2_draft_options *options, df2_draft *draft) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    require(draft != nullptr && draft->struct_size >= sizeof(uint32_t), "draft is NULL or its struct_size is not set");
    const df2_draft_options given = df2::read_options(options, df2_draft_options DF2_DRAFT_OPTIONS_INIT);
    session->session->check_draft(given.n_draft);
    const df2::Draft made = session->session->draft(given.n_draft, read_sampling(given));
    const df2::DraftDetails details = session->session->draft_details();
    df2_draft found = {};
    found.n_draft = made.n_draft;
    found.n_candidates = details.n_candidates;
    found.n_embd = session->session->drafter_params()->n_embd;
    found.n_vocab = details.n_vocab;
    found.tokens = made.path;
    found.candidates = details.candidates;
    found.scores = details.scores;
    found.q = details.q;
    found.tokens_q = made.path_q;
    found.hidden = details.hidden;
    found.logits = details.logits;
    df2::write_result(draft, found);
  });
}

int32_t df2_session_stats_get(const df2_session *session, df2_stats *stats) {
  return guard([&] {
    require(session != nullptr, "session is NULL");
    df2::write_result(stats, session->session->read_stats());
  });
}

void df2_session_stats_reset(df2_session *session) {
  if (session != nullptr) {
    session->session->reset_stats();
  }
}

}  // extern "C"
