// The threads that ggml computes with. OpenMP keeps those of a calling thread until that thread ends, and a fork does
// not copy them: the child would wait for them for ever.
#pragma once

#include <functional>

namespace df2 {

// Runs work, which computes, and leaves no threads behind: on a thread of its own, which takes them along when it ends,
// or on this one if none can be started. Throws what work throws.
void compute_and_end_threads(const std::function<void()> &work);

// To be called before anything is computed on the calling thread. Throws DF2_EUNSUPPORTED in a process that was forked
// from one that had computed.
void check_compute_threads();

}  // namespace df2
