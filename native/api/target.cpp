// The C API for targets.
#include "target/target.h"

#include "api/guard.h"
#include "api/handles.h"
#include "api/options.h"
#include "core/memory_plan.h"

using df2::guard;
using df2::require;

extern "C" {

int32_t df2_target_options_init(df2_target_options *options, size_t size) {
  return guard([&] { df2::init_options(options, size, df2_target_options DF2_TARGET_OPTIONS_INIT); });
}

int32_t df2_target_open(df2_target **out, const char *path, const df2_target_options *options) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    require(path != nullptr && *path != '\0', "path is NULL or empty");
    const df2_target_options given = df2::read_options(options, df2_target_options DF2_TARGET_OPTIONS_INIT);
    auto handle = std::make_unique<df2_target>();
    handle->target = df2::open_within(path, df2::to_target_options(given), given.max_bytes);
    *out = handle.release();
  });
}

int32_t df2_target_attach(df2_target **out, struct llama_context *context, df2_taps *taps) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    require(context != nullptr, "context is NULL");
    auto handle = std::make_unique<df2_target>();
    handle->target = df2::Target::attach(context, taps);
    *out = handle.release();
  });
}

struct llama_context *df2_target_context(const df2_target *target) {
  return target != nullptr ? target->target->context() : nullptr;
}

int32_t df2_target_tokenize(const df2_target *target, const char *text, int32_t n_bytes, bool add_special,
                            bool parse_special, int32_t *tokens, int32_t capacity, int32_t *n_tokens) {
  return guard([&] {
    require(target != nullptr, "target is NULL");
    require(text != nullptr && n_bytes >= 0, "text is NULL or n_bytes negative");
    require(capacity >= 0 && (tokens != nullptr || capacity == 0), "tokens has no room for `capacity` ids");
    require(n_tokens != nullptr, "n_tokens is NULL");
    *n_tokens = target->target->tokenize(text, n_bytes, add_special, parse_special, tokens, capacity);
  });
}

void df2_target_free(df2_target *target) {
  delete target;
}

}  // extern "C"
