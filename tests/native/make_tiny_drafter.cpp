// Writes a small random drafter for a target, for the examples to run with.
#include <cstdio>
#include <exception>

#include "tiny_drafter.h"

int main(int argc, char **argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s TARGET.gguf DRAFTER.gguf\n", argv[0]);
    return 2;
  }
  try {
    write_tiny_drafter(TinyDrafter(), argv[1], argv[2]);
  } catch (const std::exception &error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
