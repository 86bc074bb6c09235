#include "ops/common/vector_avx2.h"

#define DF2_ISA avx2
#define DF2_KEY_ROWS 3
#define DF2_DIRECT_ROWS 6
#define DF2_PARTS_AT_ONCE 4
#define DF2_VALUE_VECTORS 2
#include "ops/attention/tile.inc"
