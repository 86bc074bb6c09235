// A context belongs to one session at a time, however many targets wrap it.
#pragma once

struct llama_context;

namespace df2 {

class ContextClaim {
 public:
  // Throws DF2_EINVAL if the context is taken.
  explicit ContextClaim(llama_context *context);
  ~ContextClaim();
  ContextClaim(const ContextClaim &) = delete;
  ContextClaim &operator=(const ContextClaim &) = delete;

 private:
  llama_context *context_;
};

}  // namespace df2
