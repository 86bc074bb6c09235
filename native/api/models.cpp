// The C API for taps, targets and drafters.
#include <algorithm>
#include <optional>

#include "api/guard.h"
#include "api/handles.h"
#include "cpu_backend/kernels.h"
#include "target/target_open.h"

using df2::guard;
using df2::require;

namespace {

bool wants_kernels(int32_t kernels) {
  require(kernels == DF2_KERNELS_DEFAULT || kernels == DF2_KERNELS_OFF, "options.kernels is not a df2_kernels");
  return kernels == DF2_KERNELS_DEFAULT;
}

}  // namespace

extern "C" {

int32_t df2_taps_create(df2_taps **out) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    *out = new df2_taps();
  });
}

void df2_taps_free(df2_taps *taps) {
  delete taps;
}

bool df2_taps_eval(struct ggml_tensor *tensor, bool ask, void *taps) {
  return static_cast<df2_taps *>(taps)->recorder.on_tensor(tensor, ask);
}

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
    handle->target =
        df2::Target::open(path, {given.n_ctx, given.n_batch, given.n_threads, wants_kernels(given.kernels)});
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

int32_t df2_drafter_options_init(df2_drafter_options *options, size_t size) {
  return guard([&] { df2::init_options(options, size, df2_drafter_options DF2_DRAFTER_OPTIONS_INIT); });
}

int32_t df2_drafter_load(df2_drafter **out, const char *path, const df2_drafter_options *options) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    require(path != nullptr && *path != '\0', "path is NULL or empty");
    const df2_drafter_options given = df2::read_options(options, df2_drafter_options DF2_DRAFTER_OPTIONS_INIT);
    require(given.version >= 0 && given.version <= 2, "options.version must be 0 (any), 1 or 2");
    ggml_backend_buffer_type_t packed = nullptr;
    std::optional<df2::DrafterKernels> kernels;
    if (wants_kernels(given.kernels)) {
      df2::enable_kernels();
      packed = df2::drafter_buffer_type();
      if (df2::kernel_status().state != DF2_KERNELS_DISABLED) {
        kernels = df2::find_drafter_kernels();
      }
    }
    auto handle = std::make_unique<df2_drafter>();
    handle->drafter = std::make_shared<const df2::Drafter>(df2::DrafterFile(path), packed, kernels);
    const int32_t version = handle->drafter->params().version;
    if (given.version != 0 && given.version != version) {
      throw df2::Error(DF2_EMISMATCH, df2::format("'%s' is a DFlash %d drafter, and DFlash %d was asked for", path,
                                                  version, given.version));
    }
    *out = handle.release();
  });
}

int32_t df2_drafter_info_get(const df2_drafter *drafter, df2_drafter_info *info) {
  return guard([&] {
    require(drafter != nullptr, "drafter is NULL");
    const df2::DrafterParams &params = drafter->drafter->params();
    df2_drafter_info found = {};
    found.version = params.version;
    found.n_layer = params.n_layer;
    found.n_embd = params.n_embd;
    found.n_vocab = params.n_vocab;
    found.n_head = params.n_head;
    found.n_head_kv = params.n_head_kv;
    found.block_size = params.block_size;
    found.conv_kernel_size = params.conv_kernel_size;
    found.conv_group_size = params.conv_group_size;
    found.selector_rank = params.selector_rank;
    found.selector_top_k = params.selector_top_k;
    found.window = params.window;
    found.n_taps = static_cast<int32_t>(params.taps.size());
    std::copy(params.taps.begin(), params.taps.end(), found.tap_layers);
    found.mask_token = params.mask_token;
    found.is_causal = params.is_causal ? 1 : 0;
    found.weights_bytes = drafter->drafter->weights_bytes();
    found.packed_bytes = drafter->drafter->packed_bytes();
    df2::write_result(info, found);
  });
}

void df2_drafter_free(df2_drafter *drafter) {
  delete drafter;
}

}  // extern "C"
