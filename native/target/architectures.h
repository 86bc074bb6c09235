// What is peculiar to architectures where the target's hidden states are concerned.
#pragma once

#include <string>

#include "cpu_backend/tap_recorder.h"

namespace df2 {

struct TapTraits {
  // Of the nodes that llama.cpp names l_out-<k>.
  TapForm form = TapForm::kRow;
  // Why those nodes are not the hidden states; null if they are.
  const char *problem = nullptr;
  // Whether graphs record what enters their layers; llama.cpp ends the process if one that does not is asked.
  bool records_inputs = false;
  // ... and what leaves the last one, as the input of layer n_layer.
  bool records_last = false;
};

// Of an architecture as its file names it.
TapTraits tap_traits(const std::string &architecture);

}  // namespace df2
