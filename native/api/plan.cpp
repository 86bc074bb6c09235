// The C API for plans.
#include "api/guard.h"
#include "api/options.h"
#include "core/memory_plan.h"

using df2::guard;
using df2::require;

namespace {

df2_plan to_plan(const df2::MemoryPlan &plan) {
  df2_plan found = {};
  found.n_ctx = plan.n_ctx;
  found.kernels = plan.kernels ? 1 : 0;
  found.available_bytes = plan.available;
  found.total_bytes = plan.total();
  found.target_mapped_bytes = plan.target.mapped;
  found.drafter_mapped_bytes = plan.drafter.mapped;
  found.target_packed_bytes = plan.target.packed;
  found.target_copied_bytes = plan.target.copied;
  found.attention_bytes = plan.target.attention;
  found.window_bytes = plan.target.window;
  found.state_bytes = plan.target.state;
  found.rewind_bytes = plan.target.rewind;
  found.compute_bytes = plan.target.compute;
  found.work_bytes = plan.target.work;
  found.logits_bytes = plan.logits;
  found.drafter_packed_bytes = plan.drafter.packed;
  found.drafter_cache_bytes = plan.drafter.cache;
  found.drafter_compute_bytes = plan.drafter.compute;
  found.drafter_features_bytes = plan.drafter.features;
  found.checkpoint_bytes = plan.checkpoints;
  return found;
}

}  // namespace

extern "C" {

int32_t df2_target_plan(df2_plan *plan, const char *target_path, const df2_target_options *target_options,
                        const char *drafter_path, const df2_drafter_options *drafter_options,
                        const df2_session_options *session_options) {
  static thread_local df2::MemoryPlan last;
  return guard([&] {
    require(plan != nullptr && plan->struct_size >= sizeof(uint32_t), "plan is NULL or its struct_size is not set");
    require(target_path != nullptr && *target_path != '\0', "target_path is NULL or empty");
    require(drafter_path == nullptr || *drafter_path != '\0', "drafter_path is empty; NULL is for none");
    const auto target = df2::read_options(target_options, df2_target_options DF2_TARGET_OPTIONS_INIT);
    const auto drafter = df2::read_options(drafter_options, df2_drafter_options DF2_DRAFTER_OPTIONS_INIT);
    const auto session = df2::read_options(session_options, df2_session_options DF2_SESSION_OPTIONS_INIT);
    df2::require_version(drafter.version);
    df2::PlanRequest request = {target_path, df2::to_target_options(target), target.max_bytes};
    request.drafter = drafter_path != nullptr ? drafter_path : "";
    request.drafter_kernels = df2::wants_kernels(drafter.kernels);
    request.drafter_version = drafter.version;
    request.session = df2::to_session_options(session);
    last = df2::plan_memory(request);
    df2_plan found = to_plan(last);
    found.note = last.note.c_str();
    found.problem = last.problem.c_str();
    df2::write_result(plan, found);
  });
}

}  // extern "C"
