#include "ops/common/vector_neon.h"

#define DF2_ISA neon
#define DF2_KEY_ROWS 2
#define DF2_DIRECT_ROWS 2
#define DF2_PARTS_AT_ONCE 4
#define DF2_VALUE_VECTORS 2
#include "ops/attention/tile.inc"
