#include "target/context_claim.h"

#include <mutex>
#include <set>

#include "common/error.h"

namespace df2 {

namespace {
std::mutex contexts_mutex;
std::set<const llama_context *> contexts_in_use;
}  // namespace

ContextClaim::ContextClaim(llama_context *context) : context_(context) {
  const std::lock_guard<std::mutex> lock(contexts_mutex);
  if (!contexts_in_use.insert(context).second) {
    throw Error(DF2_EINVAL, "the target's context already has a session; free that one first");
  }
}

ContextClaim::~ContextClaim() {
  const std::lock_guard<std::mutex> lock(contexts_mutex);
  contexts_in_use.erase(context_);
}

}  // namespace df2
