#include "isas.h"

#include <stdio.h>
#include <string.h>

#include "ops/common/cpu.h"

static bool is_tested(const test_options *options, const char *isa, uint32_t features) {
  const bool is_named = options->isa == NULL || strcmp(options->isa, isa) == 0;
  return is_named && (features & ~df2_cpu_features()) == 0;
}

int32_t test_isa_next(const test_options *options, test_isa_at isa_at, int32_t index) {
  uint32_t features;
  const char *isa;
  for (; (isa = isa_at(index, &features)) != NULL; ++index) {
    if (is_tested(options, isa, features)) {
      return index;
    }
  }
  return -1;
}

bool test_isas_print(const test_options *options, test_isa_at isa_at) {
  uint32_t features;
  const char *isa;
  printf("instruction sets tested:");
  for (int32_t i = 0; (i = test_isa_next(options, isa_at, i)) >= 0; ++i) {
    printf(" %s", isa_at(i, &features));
  }
  printf("\n");
  for (int32_t i = 0; options->isa == NULL && (isa = isa_at(i, &features)) != NULL; ++i) {
    if (!is_tested(options, isa, features)) {
      printf("not on this CPU: %s\n", isa);
    }
  }
  if (test_isa_next(options, isa_at, 0) < 0) {
    fprintf(stderr, "FAILED: no kernel of instruction set \"%s\" can run here\n", options->isa);
    return false;
  }
  return true;
}
