#include "harness.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_MESSAGES 20

static char current_case[256]; /* empty: none was named yet */
/* threads may check, too */
static _Atomic int64_t n_checks;
static _Atomic int64_t n_failures;

static void on_crash(int number) {
  static const char text[] = "crashed in: ", start[] = "start";
  /* nothing to do if a write fails */
  ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
  const char *name = *current_case != '\0' ? current_case : start;
  ignored += write(STDERR_FILENO, name, strlen(name));
  ignored += write(STDERR_FILENO, "\n", 1);
  (void)ignored;
  signal(number, SIG_DFL);
  raise(number);
}

static void usage(const char *program) {
  fprintf(stderr, "usage: %s [--seed N] [--quick] [--isa NAME] [--dispatch]\n", program);
  exit(2);
}

void test_start(test_options *options, int argc, char **argv) {
  *options = (test_options){.seed = 1};
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (strcmp(argv[i], "--quick") == 0) {
      options->quick = true;
    } else if (strcmp(argv[i], "--dispatch") == 0) {
      options->dispatch = true;
    } else if (strcmp(argv[i], "--isa") == 0 && has_value) {
      options->isa = argv[++i];
    } else if (strcmp(argv[i], "--seed") == 0 && has_value) {
      char *end;
      errno = 0;
      options->seed = strtoull(argv[++i], &end, 0);
      if (*end != '\0' || errno != 0) {
        usage(argv[0]);
      }
    } else {
      usage(argv[0]);
    }
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGSEGV, on_crash);
  signal(SIGBUS, on_crash);
  signal(SIGILL, on_crash);
  if (!options->dispatch) {
    printf("seed %" PRIu64 "%s\n", options->seed, options->quick ? ", quick" : "");
  }
}

int test_finish(const char *name) {
  if (n_checks == 0) {
    printf("%s: FAILED, nothing was tested\n", name);
    return 1;
  }
  printf("%s: %s, %" PRId64 " checks, %" PRId64 " failures\n", name, n_failures == 0 ? "passed" : "FAILED",
         (int64_t)n_checks, (int64_t)n_failures);
  return n_failures == 0 ? 0 : 1;
}

void test_case(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(current_case, sizeof current_case, format, arguments);
  va_end(arguments);
}

bool test_check(bool condition, const char *format, ...) {
  ++n_checks;
  const int64_t nth_failure = condition ? 0 : ++n_failures;
  if (!condition && nth_failure <= MAX_MESSAGES) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s%s", current_case, *current_case != '\0' ? ": " : "");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "%s\n", nth_failure == MAX_MESSAGES ? " (no more messages)" : "");
    va_end(arguments);
  }
  return condition;
}

/* splitmix64: any state is a good one */
uint64_t test_random_bits(test_random *random) {
  random->state += 0x9e3779b97f4a7c15u;
  uint64_t z = random->state;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

test_random test_random_for(uint64_t seed, const char *name, uint64_t number) {
  test_random random = {seed};
  for (; *name != '\0'; ++name) {
    random.state = test_random_bits(&random) ^ (uint8_t)*name;
  }
  random.state = test_random_bits(&random) ^ number;
  return random;
}

uint32_t test_random_below(test_random *random, uint32_t n) {
  return (uint32_t)((test_random_bits(random) >> 32) * n >> 32);
}

float test_random_float(test_random *random) {
  return (float)((int32_t)test_random_below(random, 1u << 24) - (1 << 23)) * 0x1p-23f;
}

void test_random_bytes(test_random *random, void *bytes, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    ((uint8_t *)bytes)[i] = (uint8_t)(test_random_bits(random) >> 56);
  }
}

test_buffer test_buffer_new(size_t size, size_t alignment) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const size_t padded = (size + alignment - 1) / alignment * alignment;
  test_buffer buffer = {.size = size};
  /* one page at least stays in front of the data */
  buffer.n_bytes = (padded + page - 1) / page * page + page;
  buffer.pages = mmap(NULL, buffer.n_bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
  if (buffer.pages == MAP_FAILED || mprotect(buffer.pages + buffer.n_bytes, page, PROT_NONE) != 0) {
    perror("test_buffer_new");
    exit(1);
  }
  memset(buffer.pages, TEST_FILL, buffer.n_bytes);
  buffer.data = buffer.pages + buffer.n_bytes - padded;
  return buffer;
}

void test_buffer_free(test_buffer *buffer) {
  munmap(buffer->pages, buffer->n_bytes + (size_t)sysconf(_SC_PAGESIZE));
  *buffer = (test_buffer){0};
}

static bool is_filled(const uint8_t *first, const uint8_t *last) {
  for (; first < last; ++first) {
    if (*first != TEST_FILL) {
      return false;
    }
  }
  return true;
}

bool test_buffer_guards_intact(const test_buffer *buffer) {
  const uint8_t *end = buffer->data + buffer->size;
  return is_filled(buffer->pages, buffer->data) && is_filled(end, buffer->pages + buffer->n_bytes);
}

bool test_buffer_untouched(const test_buffer *buffer, size_t first, size_t last) {
  return is_filled(buffer->data + first, buffer->data + last);
}

uint32_t test_float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

float test_float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t canonical_bits(float value) {
  return value != value ? 0x7fc00000u : test_float_bits(value);
}

int64_t test_first_difference(const float *a, const float *b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (canonical_bits(a[i]) != canonical_bits(b[i])) {
      return i;
    }
  }
  return -1;
}

uint64_t test_checksum(uint64_t checksum, const float *values, int64_t n) {
  test_random random = {checksum};
  for (int64_t i = 0; i < n; ++i) {
    random.state = test_random_bits(&random) ^ canonical_bits(values[i]);
  }
  return random.state;
}
