// A drafter file is read and checked without a device; its weights then go where they are computed with, and its
// operations take the form that the device can run.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "check.h"
#include "common/error.h"
#include "cpu_backend/kernels.h"
#include "damage.h"
#include "drafter/drafter.h"
#include "drafter/drafter_ops.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"
#include "tiny_drafter.h"

namespace {

using df2::Drafter;
using df2::DrafterFile;

std::string target_path;
const std::string drafter_path = "test_drafter_file.gguf";

// Writes a file with all optional tensors that a drafter of this library's tests can have.
void write_drafter() {
  TinyDrafter shape;
  shape.n_vocab_draft = 40;
  shape.has_sinks = true;
  shape.has_biases = true;
  shape.has_post_norms = true;
  shape.n_ff = 4096;
  write_tiny_drafter(shape, target_path, drafter_path);
}

void replace(Bytes *bytes, const std::string &from, const std::string &to) {
  const auto found = std::search(bytes->begin(), bytes->end(), from.begin(), from.end());
  CHECK(found != bytes->end() && from.size() == to.size());
  std::copy(to.begin(), to.end(), found);
}

std::string number(int32_t value) {
  return std::string(reinterpret_cast<const char *>(&value), sizeof(value));
}

void check_refused(const Bytes &bytes, df2_status status, const std::string &problem) {
  write_file(drafter_path, bytes);
  try {
    const DrafterFile file(drafter_path);
    std::fprintf(stderr, "accepted, but: %s\n", problem.c_str());
    CHECK(false);
  } catch (const df2::Error &error) {
    const bool is_said = std::strstr(error.what(), problem.c_str()) != nullptr;
    if (error.status() != status || !is_said) {
      std::fprintf(stderr, "'%s' instead of '%s'\n", error.what(), problem.c_str());
    }
    CHECK(error.status() == status && is_said);
  }
}

void test_refusals() {
  write_drafter();
  const Bytes valid = read_file(drafter_path);
  const auto refuse = [&](const std::string &from, const std::string &to, df2_status status, const char *problem) {
    Bytes bytes = valid;
    replace(&bytes, from, to);
    check_refused(bytes, status, problem);
  };
  refuse("blk.1.ffn_up.weight", "blk.1.ffn_xx.weight", DF2_EFORMAT, "tensor 'blk.1.ffn_up.weight' is missing");
  refuse("blk.0.attn_v.weight", "blk.0.attn_x.weight", DF2_EUNSUPPORTED, "layer 0 has no attn_v.weight");
  refuse("blk.1.attn_sinks", "blk.1.attn_drain", DF2_EUNSUPPORTED, "'blk.1.attn_drain.weight' is not part of");
  refuse("blk.1.attn_k.bias", "blk.1.attn_j.bias", DF2_EUNSUPPORTED, "'blk.1.attn_j.bias' is not part of");
  refuse("d2t", "d3t", DF2_EFORMAT, "a reduced output.weight needs a d2t tensor");
  // the key's type, a 32-bit integer, and its value
  refuse(
      "feed_forward_length" + number(4) + number(4096), "feed_forward_length" + number(4) + number(4097), DF2_EFORMAT,
      "tensor 'blk.0.ffn_gate.weight' has shape [64, 4096, 1, 1]; [64, 4097, 1, 1] fits the other sizes in the file");
}

// The drafter's file with the fourth number of a tensor changed.
template <typename Number>
Bytes with_fourth(const std::string &name, Number number) {
  write_drafter();
  Bytes bytes = read_file(drafter_path);
  const DrafterFile file(drafter_path);
  for (const df2::DrafterTensor &tensor : file.tensors()) {
    if (tensor.info.name == name) {
      const auto offset = static_cast<size_t>(tensor.info.data - file.map().data());
      std::memcpy(bytes.data() + offset + 3 * sizeof(number), &number, sizeof(number));
    }
  }
  return bytes;
}

void test_values() {
  check_refused(with_fourth<int64_t>("d2t", 160), DF2_EFORMAT,
                "d2t maps draft token 3 to 160, outside the vocabulary of 160");
  for (const char *name : {"output_norm.weight", "blk.1.attn_k.bias", "blk.0.ffn_conv_base"}) {
    for (const float number : {NAN, INFINITY}) {
      check_refused(with_fourth(name, number), DF2_EFORMAT,
                    std::string("tensor '") + name + "' holds NaN or infinite values");
    }
  }
}

// What ggml's header says of a device, in ggml's order; only the type is asked for.
struct FakeDevice {
  void *get_name = nullptr;
  void *get_description = nullptr;
  void *get_memory = nullptr;
  enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t) = [](ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
  };
};

bool is_fused(ggml_backend_dev_t device, const Drafter &drafter) {
  const ggml_context_ptr context(ggml_init({16 * ggml_tensor_overhead(), nullptr, true}));
  ggml_tensor *x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, drafter.params().n_embd, 2);
  const std::unique_ptr<df2::DrafterOps> ops = df2::ops_for(device, drafter);
  return ops->norm(context.get(), x, drafter.weights().output_norm)->op == GGML_OP_CUSTOM;
}

void test_forms() {
  write_drafter();
  const Drafter with_kernels(DrafterFile(drafter_path), nullptr, df2::find_drafter_kernels());
  const Drafter without(DrafterFile(drafter_path), nullptr, std::nullopt);
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  FakeDevice fake;
  auto *gpu = reinterpret_cast<ggml_backend_dev_t>(&fake);
  CHECK(is_fused(cpu, with_kernels));
  CHECK(!is_fused(cpu, without));
  CHECK(!is_fused(gpu, with_kernels));
}

#if defined(__linux__)

// Bytes of the mapped file that are in this process's memory.
size_t resident_bytes() {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool is_file = false;
  size_t n_kibibytes = 0;
  while (std::getline(maps, line)) {
    unsigned long long value = 0;
    unsigned long long end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &value, &end) == 2) {
      is_file = line.find(drafter_path) != std::string::npos;
    } else if (is_file && std::sscanf(line.c_str(), "Rss: %llu", &value) == 1) {
      n_kibibytes += value;
    }
  }
  return n_kibibytes * 1024;
}

// What has been packed is not in memory twice.
void test_pages() {
  write_drafter();
  df2::enable_kernels();
  ggml_backend_buffer_type_t packed_type = df2::drafter_buffer_type();
  if (packed_type == nullptr) {
    std::printf("packed pages: skipped, no kernels\n");
    return;
  }
  const DrafterFile file(drafter_path);
  const Drafter drafter(file, packed_type, std::nullopt);
  CHECK(drafter.packed_bytes() > file.weights_bytes() / 2);
  CHECK(resident_bytes() < file.weights_bytes() / 4);
  // one that is not packed reads the pages again
  const Drafter mapped(file, nullptr, std::nullopt);
  CHECK(mapped.packed_bytes() == 0);
  const ggml_tensor *up = mapped.weights().layers[0].ffn_up;
  std::vector<char> bytes(ggml_nbytes(up));
  ggml_backend_tensor_get(up, bytes.data(), 0, bytes.size());
  CHECK(resident_bytes() >= bytes.size());
}

#endif

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s TARGET.gguf\n", argv[0]);
    return 2;
  }
  target_path = argv[1];
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  test_refusals();
  test_values();
  test_forms();
#if defined(__linux__)
  test_pages();
#endif
  std::remove(drafter_path.c_str());
  return report("drafter_file");
}
