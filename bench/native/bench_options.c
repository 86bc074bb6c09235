#include "bench_options.h"

#include <stdlib.h>
#include <string.h>

bool parse_list(int32_t *list, const char *text, int32_t largest) {
  int32_t n = 0;
  char *end = NULL;
  for (const char *at = text; n < MAX_LIST - 1; at = end + 1) {
    long value = strtol(at, &end, 10);
    if (end == at || value < 1 || value > largest) {
      return false;
    }
    list[n++] = (int32_t)value;
    if (*end != ',') {
      break;
    }
  }
  list[n] = 0;
  return *end == '\0';
}

bool parse_number(int32_t *number, const char *text, int32_t largest) {
  int32_t list[MAX_LIST];
  if (!parse_list(list, text, largest) || list[1] != 0) {
    return false;
  }
  *number = list[0];
  return true;
}

bool is_listed(const char *list, const char *name) {
  size_t length = strlen(name);
  for (const char *at = list; at && (at = strstr(at, name)) != NULL; at++) {
    bool begins = at == list || at[-1] == ',';
    if (begins && (at[length] == ',' || at[length] == '\0')) {
      return true;
    }
  }
  return list == NULL;
}
