// Whether a drafter and a target belong together.
#pragma once

#include "drafter/drafter.h"
#include "target/target.h"

namespace df2 {

// Throws DF2_EMISMATCH, with the reason, if they do not. Returns how many of their tokens differ: a few may.
int32_t check_fit(const Target &target, const Drafter &drafter);

// The same, with a warning for the log if tokens differ.
void check_pair(const Target &target, const Drafter &drafter);

// Logs a warning if the drafter uses weights of a target that changes their results, and its file does not state
// whether it was trained on that.
void warn_of_unstated_scales(const Target &target, const Drafter &drafter, const SharedWeights &shared);

}  // namespace df2
