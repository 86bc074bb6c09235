// The C API for drafters.
#include "drafter/drafter.h"

#include <algorithm>

#include "api/guard.h"
#include "api/handles.h"
#include "drafter/load_drafter.h"

using df2::guard;
using df2::require;

extern "C" {

int32_t df2_drafter_options_init(df2_drafter_options *options, size_t size) {
  return guard([&] { df2::init_options(options, size, df2_drafter_options DF2_DRAFTER_OPTIONS_INIT); });
}

int32_t df2_drafter_load(df2_drafter **out, const char *path, const df2_drafter_options *options) {
  return guard([&] {
    require(out != nullptr, "out is NULL");
    *out = nullptr;
    require(path != nullptr && *path != '\0', "path is NULL or empty");
    const df2_drafter_options given = df2::read_options(options, df2_drafter_options DF2_DRAFTER_OPTIONS_INIT);
    df2::require_version(given.version);
    auto handle = std::make_unique<df2_drafter>();
    handle->drafter = df2::load_drafter(path, df2::wants_kernels(given.kernels), given.version);
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
    found.is_causal = params.is_causal_windowed && params.is_causal_full ? 1 : 0;
    found.weights_bytes = drafter->drafter->weights_bytes();
    found.packed_bytes = drafter->drafter->packed_bytes();
    df2::write_result(info, found);
  });
}

void df2_drafter_free(df2_drafter *drafter) {
  delete drafter;
}

}  // extern "C"
