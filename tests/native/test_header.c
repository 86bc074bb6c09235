#include "dflash2.h"

/* the macros must be valid C initialisers */
df2_target_options target_options = DF2_TARGET_OPTIONS_INIT;
df2_drafter_options drafter_options = DF2_DRAFTER_OPTIONS_INIT;
df2_session_options session_options = DF2_SESSION_OPTIONS_INIT;
