// Packed weights as memory: written in parts, read back, and what happens without memory or threads.
//
// Without arguments: everything in one process. "threadless": where no thread can be started.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "cpu_backend/packed_buffer.h"
#include "dflash2.h"
#include "ggml_nodes.h"

#if defined(__linux__)
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#endif

namespace {

// How many more allocations this thread may make; none fails while it is negative.
thread_local int64_t allocations_left = -1;

void *allocate(std::size_t size, std::size_t alignment) {
  if (allocations_left == 0) {
    throw std::bad_alloc();
  }
  allocations_left -= allocations_left > 0 ? 1 : 0;
  void *memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void *)), size) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void *operator new(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}

void *operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}

void operator delete(void *memory) noexcept {
  std::free(memory);
}

void operator delete(void *memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

void operator delete(void *memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

void operator delete(void *memory, std::size_t /*size*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}

namespace {

constexpr int64_t kBigIn = 256;
constexpr int64_t kBigOut = 40000;  // enough to be packed by several threads

std::vector<uint8_t> random_bytes(size_t n, uint32_t seed) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t &byte : bytes) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(seed >> 24);
  }
  return bytes;
}

std::vector<uint8_t> read(const ggml_tensor *tensor, size_t offset, size_t size) {
  std::vector<uint8_t> bytes(size, 0xa5);
  ggml_backend_tensor_get(tensor, bytes.data(), offset, size);
  return bytes;
}

std::vector<uint8_t> slice(const std::vector<uint8_t> &bytes, size_t offset, size_t size) {
  const auto begin = bytes.begin() + static_cast<int64_t>(offset);
  return {begin, begin + static_cast<int64_t>(size)};
}

void test_weights_in_parts() {
  const std::vector<uint8_t> data = quantise(GGML_TYPE_Q5_K, 256, 50, 9);
  const std::vector<float> x = noise(256 * 2, 10);
  const Weights whole(GGML_TYPE_Q5_K, 256, 50, 1, df2::packed_buffer_type(), data);
  const Weights parts(GGML_TYPE_Q5_K, 256, 50, 1, df2::packed_buffer_type(), quantise(GGML_TYPE_Q5_K, 256, 50, 11));
  ggml_backend_tensor_set(parts.tensor, data.data() + 1000, 1000, 3000);
  ggml_backend_tensor_set(parts.tensor, data.data() + 4000, 4000, data.size() - 4000);
  ggml_backend_tensor_set(parts.tensor, data.data(), 0, 1000);
  CHECK(same_bits(multiply(whole.tensor, x, 2, 1), multiply(parts.tensor, x, 2, 1)));
  CHECK(read(parts.tensor, 0, data.size()) == data);
}

// Every bit of every field comes back, also of blocks that no quantisation would make.
void test_reading_back(ggml_type type) {
  for (const int64_t n_out : {1, 16, 37}) {
    for (const int64_t n_matrices : {1, 3}) {
      constexpr int64_t n_in = 512;
      const size_t row = ggml_row_size(type, n_in);
      const std::vector<uint8_t> data = random_bytes(row * static_cast<size_t>(n_out * n_matrices), 1);
      const Weights packed(type, n_in, n_out, n_matrices, df2::packed_buffer_type(), data);
      const bool is_same = read(packed.tensor, 0, data.size()) == data;
      if (!is_same) {
        std::fprintf(stderr, "%s [%d, %d] x %d: other bytes come back\n", ggml_type_name(type), (int)n_in, (int)n_out,
                     (int)n_matrices);
      }
      CHECK(is_same);
    }
  }
}

void test_reading_parts() {
  constexpr int64_t n_in = 256;
  constexpr int64_t n_out = 40;
  const std::vector<uint8_t> data = random_bytes(ggml_row_size(GGML_TYPE_Q6_K, n_in) * n_out * 2, 2);
  const Weights packed(GGML_TYPE_Q6_K, n_in, n_out, 2, df2::packed_buffer_type(), data);
  const size_t row = packed.tensor->nb[1];
  for (const size_t begin : {size_t{0}, size_t{5}, row - 1, row, 15 * row, 39 * row + 7, 40 * row}) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, row - 5, row, row + 1, 17 * row, 40 * row - 7}) {
      CHECK(read(packed.tensor, begin, size) == slice(data, begin, size));
    }
  }
  const ggml_context_ptr context = make_context();
  ggml_tensor *upper = ggml_view_2d(context.get(), packed.tensor, n_in, 16, row, 23 * row);
  upper->buffer = packed.tensor->buffer;
  CHECK(read(upper, 3, 9 * row) == slice(data, 23 * row + 3, 9 * row));
}

// Whichever allocation fails while threads are started, this one packs alone.
void test_packing_without_memory() {
  const std::vector<uint8_t> data = random_bytes(ggml_row_size(GGML_TYPE_Q4_0, kBigIn) * kBigOut, 3);
  const Weights packed(GGML_TYPE_Q4_0, kBigIn, kBigOut, 1, df2::packed_buffer_type(), data);
  CHECK(read(packed.tensor, 0, data.size()) == data);
  int64_t n_failures = 0;
  for (int64_t n_allowed = 0; n_allowed < 200; ++n_allowed) {
    std::memset(packed.tensor->data, 0, data.size());
    bool threw = false;
    allocations_left = n_allowed;
    try {
      ggml_backend_tensor_set(packed.tensor, data.data(), 0, data.size());
    } catch (const std::bad_alloc &) {
      threw = true;
    }
    const bool was_enough = allocations_left > 0;
    allocations_left = -1;
    CHECK(!threw);
    CHECK(read(packed.tensor, 0, data.size()) == data);
    if (was_enough) {
      break;
    }
    ++n_failures;
  }
  CHECK(n_failures > 0);
}

int test_everything() {
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  CHECK_STATUS(df2_kernels_info_get(&info), DF2_OK);
  if (info.state == DF2_KERNELS_UNSUPPORTED) {
    std::printf("packed weights: no kernels for this CPU\n");
    return report("packed weights");
  }
  CHECK(info.state == DF2_KERNELS_ACTIVE);
  test_weights_in_parts();
  for (const ggml_type type : kernel_types()) {
    test_reading_back(type);
  }
  test_reading_parts();
  test_packing_without_memory();
  return report("packed weights");
}

// Makes every attempt to start a thread fail, for good, as a limit on processes does. False if that cannot be had.
bool forbid_threads() {
#if defined(__linux__) && defined(SYS_clone3)
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
#else
  return false;
#endif
}

int test_threadless() {
  if (!forbid_threads()) {
    std::printf("packed weights threadless: skipped, this system has no seccomp filters\n");
    return 77;
  }
  const int result = test_everything();  // not ended by ggml's thread pool, and everything is packed by this thread
  const std::vector<uint8_t> data = quantise(GGML_TYPE_Q8_0, 64, 20, 4);
  const Weights packed(GGML_TYPE_Q8_0, 64, 20, 1, df2::packed_buffer_type(), data);
  CHECK(multiply(packed.tensor, noise(64, 5), 1, 1)[0] != 0.0f);
  return result + report("packed weights threadless");
}

}  // namespace

int main(int argc, char **argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  return mode == "threadless" ? test_threadless() : test_everything();
}
