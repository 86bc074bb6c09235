#include "ops/common/vector_neon.h"

#define DF2_ISA neon
#include "ops/norm/tile.inc"
