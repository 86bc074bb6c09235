#include "core/memory_plan.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/memory_limit.h"
#include "core/pair.h"
#include "drafter/load_drafter.h"

namespace df2 {

namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

std::string text_of(uint64_t n_bytes) {
  const double kibibytes = static_cast<double>(n_bytes) / 1024;
  if (kibibytes < 1024.0) {
    return format("%.1f KiB", kibibytes);
  }
  const double mebibytes = kibibytes / 1024.0;
  return mebibytes < 1024.0 ? format("%.1f MiB", mebibytes) : format("%.1f GiB", mebibytes / 1024.0);
}

// -- What it takes --------------------------------------------------------------------------------------------------

void add_drafter(const PlanRequest &request, const std::shared_ptr<const Drafter> &drafter, Target *target,
                 MemoryPlan *plan) {
  check_fit(*target, *drafter);
  const DrafterRunner runner(drafter, target->shared_weights(), runner_options(request.session, *target, *drafter));
  DrafterBytes &bytes = plan->drafter;
  bytes.packed = drafter->packed_bytes();
  bytes.packed_from = drafter->is_mapped() ? drafter->weights_bytes() - drafter->mapped_bytes() : 0;
  (drafter->is_mapped() ? bytes.mapped : bytes.packed) += drafter->mapped_bytes();
  bytes.cache = runner.cache_bytes();
  bytes.compute = runner.compute_bytes();
  const PromptBatch batch = prompt_batch(*target, drafter.get());
  const int32_t n_draft = request.session.n_draft < 0 ? drafter->params().block_size - 1 : request.session.n_draft;
  const auto n_logits = static_cast<uint64_t>(std::max(batch.n_logits, n_draft + 1));
  plan->logits = std::max(plan->logits, n_logits * static_cast<uint64_t>(target->n_vocab()) * sizeof(float));
  bytes.features = static_cast<uint64_t>(batch.n_tokens) * static_cast<uint64_t>(runner.n_features()) * sizeof(float);
}

// Makes everything in memory that is not there, and asks what it takes.
MemoryPlan measure(const PlanRequest &request, bool kernels) {
  const SimulatedMemory simulation;
  // the drafter first: it is the smaller file, and as likely to be the wrong one
  const std::shared_ptr<const Drafter> drafter =
      request.drafter.empty() ? nullptr
                              : load_drafter(request.drafter, request.drafter_kernels, request.drafter_version);
  TargetOptions options = request.options;
  options.kernels = kernels;
  const std::unique_ptr<Target> target = Target::simulate(request.target, options);
  MemoryPlan plan;
  plan.n_ctx = target->n_ctx();
  plan.target = target->bytes();
  plan.has_checkpoints = Checkpoints::are_possible(target->context());
  plan.kernels = kernels;
  plan.logits = static_cast<uint64_t>(target->n_vocab()) * sizeof(float);
  check_options(request.session, *target, drafter.get());
  if (drafter != nullptr) {
    add_drafter(request, drafter, target.get(), &plan);
  }
  return plan;
}

// -- Whether there is as much ---------------------------------------------------------------------------------------

std::string parts_of(const MemoryPlan &plan) {
  const TargetBytes &target = plan.target;
  const DrafterBytes &drafter = plan.drafter;
  const std::vector<std::pair<const char *, uint64_t>> parts = {
      {"packed weights", target.packed},
      {"copied weights", target.copied},
      {"K/V cache", target.attention + target.window},
      {"recurrent state", target.state},
      {"copies of it to go back to", target.rewind},
      {"compute buffers", target.compute + target.work},
      {"logits", plan.logits},
      {"the drafter", drafter.total()},
  };
  std::string text;
  for (const auto &[name, n_bytes] : parts) {
    if (n_bytes > 0) {
      text += format("%s%s %s", text.empty() ? "" : ", ", name, text_of(n_bytes).c_str());
    }
  }
  return text;
}

MemoryPlan with_cut_windows(PlanRequest request, bool kernels) {
  request.options.swa_full = false;
  return measure(request, kernels);
}

// What makes a big difference. stock: the plan with kernels off.
std::string remedies(const PlanRequest &request, const MemoryPlan &plan, const MemoryPlan &stock) {
  const uint64_t much = plan.total() / 8;
  std::vector<std::string> found;
  if (stock.total() + much < plan.total()) {
    found.push_back(format("kernels off (kernels = false): %s", text_of(stock.total()).c_str()));
  }
  if (plan.target.attention > much) {
    const uint64_t per_step = plan.target.attention / static_cast<uint64_t>(plan.n_ctx) * 1024;
    found.push_back(format("a smaller n_ctx than %d (1024 tokens take %s)", plan.n_ctx, text_of(per_step).c_str()));
  }
  if (plan.target.attention > much && request.options.type_k == GGML_TYPE_F16 &&
      request.options.type_v == GGML_TYPE_F16) {
    found.emplace_back("a K/V cache of 8 or 4 bits (cache_type_k, cache_type_v: q8_0, q4_0)");
  }
  const MemoryPlan cut = with_cut_windows(request, plan.kernels);
  if (cut.total() + much < plan.total()) {
    found.push_back(
        format("swa_full = false, which cuts the caches of sliding windows: %s", text_of(cut.total()).c_str()));
  }
  if (plan.target.compute + plan.target.work > much) {
    found.emplace_back("a smaller n_batch");
  }
  if (plan.drafter.cache > much) {
    found.emplace_back("a smaller window for the drafter");
  }
  if (!request.drafter.empty() && plan.drafter.total() > much) {
    found.push_back(format("no drafter: %s", text_of(plan.total() - plan.drafter.total()).c_str()));
  }
  if (request.max_bytes > 0 && request.max_bytes == plan.available) {
    found.emplace_back("a larger max_bytes");
  }
  std::string text;
  for (const std::string &remedy : found) {
    text += (text.empty() ? "; what would help: " : ", or ") + remedy;
  }
  return text;
}

std::string problem_of(const PlanRequest &request, const MemoryPlan &plan, const MemoryPlan &stock) {
  return format("'%s' needs %s of memory with a context of %d tokens, and %s are available: %s%s",
                request.target.c_str(), text_of(plan.total()).c_str(), plan.n_ctx, text_of(plan.available).c_str(),
                parts_of(plan).c_str(), remedies(request, plan, stock).c_str());
}

// -- What opening does with what there is ---------------------------------------------------------------------------

bool fits(const MemoryPlan &plan) {
  return plan.total() <= plan.available;
}

void add_note(const std::string &note, MemoryPlan *plan) {
  plan->note += (plan->note.empty() ? "" : "; ") + note;
}

// A drafter's weights that there is no memory to pack are read where they are mapped.
MemoryPlan with_mapped_drafter(MemoryPlan plan) {
  plan.drafter.mapped += plan.drafter.packed_from;
  plan.drafter.packed = 0;
  plan.drafter.packed_from = 0;
  add_note("the drafter's weights stay as they are in its file: no memory for packed ones", &plan);
  return plan;
}

MemoryPlan with_kernels_off(const PlanRequest &request, const MemoryPlan &asked) {
  MemoryPlan plan = measure(request, false);
  plan.available = asked.available;
  add_note(format("opened with llama.cpp's own kernels: no memory for %s of packed weights",
                  text_of(asked.target.packed).c_str()),
           &plan);
  return plan;
}

MemoryPlan choose(const PlanRequest &request, const MemoryPlan &asked) {
  std::vector<MemoryPlan> plans = {asked};
  if (!fits(asked) && asked.kernels) {
    plans.push_back(with_kernels_off(request, asked));
  }
  // loading a drafter knows the machine's limits, not one of the program's own
  const bool may_map = asked.drafter.packed_from > 0 && asked.available != request.max_bytes;
  for (const MemoryPlan &plan : plans) {
    if (fits(plan)) {
      return plan;
    }
    if (may_map && fits(with_mapped_drafter(plan))) {
      return with_mapped_drafter(plan);
    }
  }
  MemoryPlan refused = asked;
  refused.problem = problem_of(request, asked, plans.back());
  return refused;
}

MemoryPlan plan_once(const PlanRequest &request) {
  MemoryPlan asked = measure(request, request.options.kernels);
  asked.available = std::min(available_memory(), request.max_bytes > 0 ? request.max_bytes : kUnlimited);
  MemoryPlan plan = choose(request, asked);
  if (plan.has_checkpoints) {
    const uint64_t left = plan.available - std::min(plan.available, plan.total());
    plan.checkpoints = checkpoint_budget(request.session.checkpoint_bytes, left);
  }
  if (fits(plan) && plan.mapped() > plan.available - plan.total()) {
    add_note(format("slow: memory has room for %s of the %s of weights that are read where their files are mapped",
                    text_of(plan.available - plan.total()).c_str(), text_of(plan.mapped()).c_str()),
             &plan);
  }
  return plan;
}

}  // namespace

MemoryPlan plan_memory(const PlanRequest &request) {
  check_options(request.options);
  Target::prepare_kernels(request.options.kernels || (!request.drafter.empty() && request.drafter_kernels));
  // llama.cpp's list of a context's tokens is not simulated: what is far too long must not be tried
  PlanRequest shorter = request;
  for (shorter.options.n_ctx = 1 << 22; shorter.options.n_ctx < request.options.n_ctx / 2; shorter.options.n_ctx *= 2) {
    MemoryPlan plan = plan_once(shorter);
    if (!plan.problem.empty()) {
      return plan;
    }
  }
  return plan_once(request);
}

std::unique_ptr<Target> open_within(const std::string &path, TargetOptions options, uint64_t max_bytes) {
  MemoryPlan plan;
  plan.kernels = options.kernels;
  try {
    if (max_bytes != kUnlimited) {
      plan = plan_memory({path, options, max_bytes});
    }
  } catch (const Error &error) {
    // opening says better what there is no memory for, or does with less
    if (error.status() != DF2_ENOMEM) {
      throw;
    }
  } catch (const std::bad_alloc &) {
    // likewise
  }
  if (!plan.problem.empty()) {
    throw Error(DF2_ENOMEM, plan.problem);
  }
  if (!plan.note.empty()) {
    log_line(DF2_LOG_WARN, format("'%s': %s", path.c_str(), plan.note.c_str()));
  }
  options.kernels = plan.kernels;
  return Target::open(path, options);
}

}  // namespace df2
