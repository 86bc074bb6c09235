// ggml aborts the process on some damaged models. While a guard exists, an abort on this thread becomes an exception
// instead, which llama.cpp's own loading code turns into a failure. For loading and for building graphs only: worker
// threads do not unwind. A guard within another one of the same thread adds nothing.
#pragma once

#include <mutex>
#include <string>

namespace df2 {

class LoadGuard {
 public:
  LoadGuard();
  ~LoadGuard();
  LoadGuard(const LoadGuard &) = delete;
  LoadGuard &operator=(const LoadGuard &) = delete;

  // What ggml said when it wanted to abort; empty if it did not.
  const std::string &message() const;

 private:
  // the abort callback is global to the process
  std::unique_lock<std::mutex> lock_;
};

}  // namespace df2
