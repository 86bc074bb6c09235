// Makes this library's kernels part of llama.cpp's CPU back end, once per process.
#pragma once

#include <cstdint>
#include <string>

#include "cpu_backend/kernel_table.h"
#include "dflash2.h"
#include "ggml-backend.h"

namespace df2 {

struct KernelStatus {
  df2_kernels_state state;
  const char *isa;   // "" unless kernels are in use
  const char *note;  // why they are not; "" if they are
};

// What a registration came to, and the line about it for the log: its callback is the program's, and may ask for the
// status, so it must not be called before the status is known.
struct Registration {
  KernelStatus status;
  df2_log_level level;
  std::string line;  // "" for none
};

// Tests the kernels and registers them, or finds out why not; later calls do nothing but wait for a first one that is
// still at it. To be called before the process loads a model, because llama.cpp then settles where weights may go.
// Throws DF2_EUNSUPPORTED beside a ListReader, and DF2_EINVAL or DF2_EUNSUPPORTED, every time, for environment
// variables that ask for what cannot be.
void enable_kernels();

// Something of this library's that decodes: while one exists, enable_kernels() throws DF2_EUNSUPPORTED if it has not
// been called before. ggml's threads go through a list that it replaces, without a lock.
class ListReader {
 public:
  ListReader();
  ~ListReader();
  ListReader(const ListReader &) = delete;
  ListReader &operator=(const ListReader &) = delete;
};

// What enable_kernels() came to.
KernelStatus kernel_status();

// Whether ggml asks this library about the nodes it computes.
bool are_kernels_in_use();

// Where a drafter's weights go: null if kernels are not in use.
ggml_backend_buffer_type_t drafter_buffer_type();

// Registers a table of kernels, whatever the environment says; they compute nothing but their self-test until they have
// passed it. For enable_kernels() and tests, once per process.
Registration register_kernels(const KernelTable &table, const char *isa);

// Multiplies small matrices through ggml, with packed and with plain weights, attends and updates states likewise, and
// compares with ggml's own. The buffer type must be in ggml's list. Returns what is wrong, or "".
std::string self_test_kernels(const KernelTable &table);

}  // namespace df2
