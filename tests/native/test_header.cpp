#include <cstring>

#include "check.h"
#include "dflash2.h"

int main() {
  df2_session_options options = DF2_SESSION_OPTIONS_INIT;
  CHECK(options.struct_size == sizeof(options) && options.n_draft == -1);
  df2_session_options filled;
  CHECK_STATUS(df2_session_options_init(&filled, sizeof(filled)), DF2_OK);
  CHECK(std::memcmp(&options, &filled, sizeof(options)) == 0);
  CHECK_STATUS(df2_session_options_init(&filled, sizeof(filled) + 4), DF2_EINVAL);
  CHECK(std::strlen(df2_error_last()) > 0);
  CHECK(std::strcmp(df2_status_name(DF2_EFORMAT), "DF2_EFORMAT") == 0);
  CHECK(std::strcmp(df2_status_name(1234), "unknown") == 0);
  return report("header");
}
