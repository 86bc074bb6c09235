#include "ops/common/vector_avx512.h"

#define DF2_ISA avx512
#define DF2_KEY_ROWS 3
#define DF2_DIRECT_ROWS 6
#define DF2_PARTS_AT_ONCE 8
#define DF2_VALUE_VECTORS 4
#include "ops/attention/tile.inc"
