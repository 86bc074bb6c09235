#include "watch.h"

#if defined(__aarch64__)

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_KEPT 8
#define VECTOR_BYTES_MAX 256

/* Apple's and Android's platform register, which no code there uses; elsewhere, functions may change it. */
#if defined(__APPLE__) || defined(__ANDROID__)
#define ALSO_CHANGED
#else
#define ALSO_CHANGED "x18",
#endif

/* Registers by number, and instructions as words: this file is compiled without any extension. */
#define SVCR "S3_3_C4_C2_2"
#define TPIDR2 "S3_3_C13_C0_5"
enum { SVCR_ZA = 2 };

static uint64_t read_svcr(void) {
  uint64_t value;
  __asm__ volatile("mrs %0, " SVCR : "=r"(value) : : "memory");
  return value;
}

static void write_svcr(uint64_t value) {
  __asm__ volatile("msr " SVCR ", %0" : : "r"(value) : "memory");
}

static uint64_t read_tpidr2(void) {
  uint64_t value;
  __asm__ volatile("mrs %0, " TPIDR2 : "=r"(value) : : "memory");
  return value;
}

static void write_tpidr2(uint64_t value) {
  __asm__ volatile("msr " TPIDR2 ", %0" : : "r"(value) : "memory");
}

static uint64_t streaming_vector_bytes(void) {
  register uint64_t value __asm__("x0");
  __asm__ volatile(".inst 0x04bf5820" : "=r"(value)); /* rdsvl x0, #1 */
  return value;
}

static void load_za_row(uint32_t row, const uint8_t *bytes) {
  register uint64_t index __asm__("x12") = row;
  register const uint8_t *address __asm__("x0") = bytes;
  __asm__ volatile(".inst 0xe1000000" : : "r"(index), "r"(address) : "memory"); /* ldr za[w12, 0], [x0] */
}

static void store_za_row(uint32_t row, uint8_t *bytes) {
  register uint64_t index __asm__("x12") = row;
  register uint8_t *address __asm__("x0") = bytes;
  __asm__ volatile(".inst 0xe1200000" : : "r"(index), "r"(address) : "memory"); /* str za[w12, 0], [x0] */
}

/* Calls body(context) with known values in d8 to d15; kept[i] is what d8+i holds afterwards. */
static void call_with_values(void (*body)(void *), void *context, const uint64_t given[N_KEPT], uint64_t kept[N_KEPT]) {
  register void (*function)(void *) __asm__("x19") = body;
  register void *argument __asm__("x20") = context;
  register const uint64_t *from __asm__("x21") = given;
  register uint64_t *to __asm__("x22") = kept;
  __asm__ volatile(
      "ldp d8, d9, [x21]\n ldp d10, d11, [x21, #16]\n ldp d12, d13, [x21, #32]\n ldp d14, d15, [x21, #48]\n"
      "mov x0, x20\n blr x19\n"
      "stp d8, d9, [x22]\n stp d10, d11, [x22, #16]\n stp d12, d13, [x22, #32]\n stp d14, d15, [x22, #48]\n"
      : "+r"(function), "+r"(argument), "+r"(from), "+r"(to)
      :
      : "memory", "cc", ALSO_CHANGED "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12",
        "x13", "x14", "x15", "x16", "x17", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",
        "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26",
        "v27", "v28", "v29", "v30", "v31");
}

static const char *call_and_compare(void (*body)(void *), void *context) {
  uint64_t given[N_KEPT], kept[N_KEPT];
  for (int i = 0; i < N_KEPT; ++i) {
    given[i] = 0x0123456789abcdefu * (uint64_t)(2 * i + 1);
  }
  call_with_values(body, context, given, kept);
  return memcmp(given, kept, sizeof given) == 0 ? NULL : "registers d8 to d15 are not what they were";
}

const char *test_watched_call(void (*body)(void *), void *context, bool has_sme) {
  const char *broken = call_and_compare(body, context);
  if (broken == NULL && has_sme && read_svcr() != 0) {
    broken = "streaming mode or ZA is on after the call";
  }
  return broken;
}

/* Row `row` of the caller's ZA. */
static void fill_row(uint8_t *bytes, uint64_t n_bytes, uint64_t row) {
  for (uint64_t i = 0; i < n_bytes; ++i) {
    bytes[i] = (uint8_t)(31 * row + 7 * i + 1);
  }
}

static const char *check_za(uint64_t n_bytes, const uint8_t *saved) {
  uint8_t expected[VECTOR_BYTES_MAX], row_bytes[VECTOR_BYTES_MAX];
  const bool was_saved = read_tpidr2() == 0;
  if (was_saved != (read_svcr() == 0)) {
    return was_saved ? "ZA was saved, but is on" : "ZA is off or streaming mode on, but ZA was not saved";
  }
  for (uint64_t row = 0; row < n_bytes; ++row) {
    fill_row(expected, n_bytes, row);
    const uint8_t *actual = saved + row * n_bytes;
    if (!was_saved) {
      store_za_row((uint32_t)row, row_bytes);
      actual = row_bytes;
    }
    if (memcmp(expected, actual, n_bytes) != 0) {
      return was_saved ? "the caller's ZA was saved wrongly" : "the caller's ZA was overwritten without being saved";
    }
  }
  return NULL;
}

const char *test_watched_call_with_za(void (*body)(void *), void *context) {
  const uint64_t n_bytes = streaming_vector_bytes();
  uint8_t *saved = malloc(n_bytes * n_bytes);
  uint8_t row_bytes[VECTOR_BYTES_MAX];
  struct {
    uint8_t *buffer;
    uint16_t n_rows;
    uint8_t reserved[6];
  } block = {saved, (uint16_t)n_bytes, {0}};
  write_svcr(SVCR_ZA);
  for (uint64_t row = 0; row < n_bytes; ++row) {
    fill_row(row_bytes, n_bytes, row);
    load_za_row((uint32_t)row, row_bytes);
  }
  write_tpidr2((uint64_t)(uintptr_t)&block);
  const char *broken = call_and_compare(body, context);
  if (broken == NULL) {
    broken = check_za(n_bytes, saved);
  }
  write_tpidr2(0);
  write_svcr(0);
  free(saved);
  return broken;
}

#else

const char *test_watched_call(void (*body)(void *), void *context, bool has_sme) {
  (void)has_sme;
  body(context);
  return 0;
}

const char *test_watched_call_with_za(void (*body)(void *), void *context) {
  return test_watched_call(body, context, false);
}

#endif
