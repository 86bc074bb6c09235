#include "ops/common/vector_neon.h"

#define DF2_ISA neon
#define DF2_ROWS 2
#include "ops/delta_net/tile.inc"
