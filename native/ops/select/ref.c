/* The kernel that runs anywhere: the common code with one lane. */
#include "ops/common/vector_scalar.h"

#define DF2_ISA ref
#include "ops/select/tile.inc"

size_t df2_select_walk_workspace_floats(int64_t k, int64_t rank) {
  return (size_t)((1 + GROUP) * padded(rank) + 2 * padded(k));
}
