// What is peculiar to architectures where the target's hidden states are concerned.
#pragma once

#include <string>

#include "cpu_backend/tap_recorder.h"

struct llama_model;

namespace df2 {

// As the model's file names it; the argument of what follows.
std::string architecture_of(const llama_model *model);

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

TapTraits tap_traits(const std::string &architecture);

// How the recurrent state of an architecture is best gone back to; see target_memory.h. Of one without, or that is
// not known: by a mark.
enum class GoesBack {
  kByMark,           // snapshots cost a copy of the state a row, or are not to be had
  kByKeptInputs,     // the same, but snapshots of the large states are not needed where inputs can be kept
  kBestBySnapshots,  // marks are possible, but make llama.cpp compute anew what it remembers of the whole context
  kBySnapshots,      // llama.cpp ends the process at a mark
};
GoesBack goes_back(const std::string &architecture);

// Whether llama.cpp's snapshots of convolutions include what was before all rows of a decode, of fewer than snapshots.
bool convolutions_know_before(const std::string &architecture);

}  // namespace df2
