#include "common/compute_threads.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <system_error>
#include <thread>

#include "common/error.h"

namespace df2 {

namespace {

// The process that has computed; 0: none has.
std::atomic<pid_t> computed_in{0};

}  // namespace

void compute_and_end_threads(const std::function<void()> &work) {
  std::exception_ptr thrown;
  const auto run = [&] {
    try {
      work();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  try {
    std::thread(run).join();
  } catch (const std::system_error &) {
    run();
  }
  if (thrown != nullptr) {
    std::rethrow_exception(thrown);
  }
}

void check_compute_threads() {
  pid_t expected = 0;
  const pid_t here = getpid();
  if (!computed_in.compare_exchange_strong(expected, here) && expected != here) {
    throw Error(DF2_EUNSUPPORTED,
                "this process was forked from one that had generated, whose threads it does not have; start workers "
                "with the spawn method, or fork before the first token");
  }
}

}  // namespace df2
