#include "cpu_backend/kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "common/error.h"
#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/plain_weights.h"
#include "cpu_backend/stock.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ops/common/cpu.h"

namespace df2 {

namespace {

std::atomic<int32_t> n_readers{0};
std::mutex status_mutex;
KernelStatus current_status = {DF2_KERNELS_UNKNOWN, "", "the kernels have not been asked for yet"};

std::string environment(const char *name) {
  const char *value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool disabled_by_environment() {
  const std::string value = environment("DF2_KERNELS");
  if (value == "off") {
    return true;
  }
  if (!value.empty() && value != "on") {
    throw Error(DF2_EINVAL, format("DF2_KERNELS is '%s'; set it to on or off, or unset it", value.c_str()));
  }
  return false;
}

// The instruction sets this CPU has, for a message.
std::string available_isas() {
  std::string names;
  uint32_t features = 0;
  const char *name;
  for (int i = 0; (name = df2_cpu_isa_at(i, &features)) != nullptr; ++i) {
    if ((df2_cpu_features() & features) == features) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
  }
  return names;
}

// What kernels may use. Throws for a DF2_FORCE_ISA that asks for what cannot be.
df2_cpu_choice choose_features() {
  const df2_cpu_choice choice = df2_cpu_choose();
  if (choice.forcing == DF2_CPU_FORCED_UNKNOWN) {
    throw Error(DF2_EINVAL, format("DF2_FORCE_ISA names '%s', which is no instruction set this library knows; this CPU "
                                   "has %s",
                                   choice.isa, available_isas().c_str()));
  }
  if (choice.forcing == DF2_CPU_FORCED_MISSING) {
    throw Error(DF2_EUNSUPPORTED,
                format("DF2_FORCE_ISA asks for '%s', but this CPU only has %s", choice.isa, available_isas().c_str()));
  }
  return choice;
}

const char *isa_of(const KernelTable &table) {
  for (const df2_qmm_kernel *kernel : table.matmul) {
    if (kernel != nullptr) {
      return kernel->isa;
    }
  }
  return "";
}

// The structs of ggml_cpu_internals.h against what ggml's own functions say about the same objects.
bool layouts_agree() {
  ggml_backend_buffer_type_t type = ggml_backend_cpu_buffer_type();
  if (type->device != ggml_backend_buft_get_device(type) || type->iface.get_name == nullptr ||
      std::strcmp(type->iface.get_name(type), ggml_backend_buft_name(type)) != 0) {
    return false;
  }
  ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(type, 64));
  return buffer != nullptr && buffer->buft == type && buffer->size == ggml_backend_buffer_get_size(buffer.get()) &&
         buffer->iface.get_base(buffer.get()) == ggml_backend_buffer_get_base(buffer.get());
}

using BufferTypes = std::vector<ggml_backend_buffer_type_t>;

// Puts another list in place of ggml's, once and for all: other threads may be going through the old one, which is
// therefore never freed, and the moment of the exchange is one too many already. A type whose kernels are not trusted
// does nothing there.
void add_to_list() {
  BufferTypes &list = ggml_backend_cpu_get_extra_buffer_types();
  if (std::find(list.begin(), list.end(), packed_buffer_type()) != list.end()) {
    return;
  }
  auto *other = new BufferTypes{packed_buffer_type(), plain_buffer_type()};
  other->insert(other->end(), list.begin(), list.end());
  other->swap(list);
}

// Whether llama.cpp will place weights in our buffers. Makes it settle the matter.
bool is_seen_by_llama() {
  ggml_backend_reg_t cpu = ggml_backend_cpu_reg();
  const auto get_types = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(cpu, "ggml_backend_dev_get_extra_bufts"));
  if (get_types == nullptr) {
    return false;
  }
  for (ggml_backend_buffer_type_t *type = get_types(ggml_backend_reg_dev_get(cpu, 0)); *type != nullptr; ++type) {
    if (*type == packed_buffer_type()) {
      return true;
    }
  }
  return false;
}

// Without a line for the log.
Registration silently(const KernelStatus &status) {
  return {status, DF2_LOG_INFO, ""};
}

void check_no_readers() {
  if (n_readers > 0) {
    throw Error(
        DF2_EUNSUPPORTED,
        "kernels cannot be enabled beside a target that was attached before, whose decodes go through what would "
        "change; call df2_kernels_enable first, or open with kernels off");
  }
}

Registration find_and_register() {
  if (disabled_by_environment()) {
    return silently({DF2_KERNELS_DISABLED, "", "switched off by the environment variable DF2_KERNELS"});
  }
  const df2_cpu_choice choice = choose_features();
  const KernelTable table = choose_kernels(choice.features, std::strcmp(choice.isa, "ref") == 0);
  const char *isa = isa_of(table);
  if (*isa == '\0') {
    return silently({DF2_KERNELS_UNSUPPORTED, "", "there are none for this CPU"});
  }
  check_no_readers();
  return register_kernels(table, isa);
}

}  // namespace

Registration register_kernels(const KernelTable &table, const char *isa) {
  std::string problem;
  try {
    if (!layouts_agree()) {
      problem = "this llama.cpp lays out its structs differently";
    } else {
      use_kernels(table);
      add_to_list();
      problem = self_test_kernels(table);
    }
  } catch (const std::exception &error) {
    problem = error.what();
  }
  if (!problem.empty()) {
    static auto *note = new std::string(problem);
    return {{DF2_KERNELS_FAILED, "", note->c_str()},
            DF2_LOG_WARN,
            format("the kernels failed their self-test (%s); llama.cpp's own are used", problem.c_str())};
  }
  trust_kernels();
  if (!is_seen_by_llama()) {
    const char *note = "llama.cpp had loaded a model before; enable kernels before the first one";
    return {{DF2_KERNELS_LATE, isa, note},
            DF2_LOG_WARN,
            format("weights are packed for the kernels in drafters only: %s", note)};
  }
  if (std::strcmp(isa, "ref") == 0) {
    return {{DF2_KERNELS_ACTIVE, isa, ""},
            DF2_LOG_WARN,
            "kernels: ref, which is for tests and many times slower than llama.cpp's own; unset DF2_FORCE_ISA"};
  }
  return {{DF2_KERNELS_ACTIVE, isa, ""}, DF2_LOG_INFO, format("kernels: %s", isa)};
}

ListReader::ListReader() {
  const std::lock_guard<std::mutex> lock(status_mutex);
  ++n_readers;
}

ListReader::~ListReader() {
  --n_readers;
}

void enable_kernels() {
  Registration result = {};
  {
    const std::lock_guard<std::mutex> lock(status_mutex);
    if (current_status.state == DF2_KERNELS_UNKNOWN) {
      result = find_and_register();
      current_status = result.status;
    }
  }
  if (!result.line.empty()) {
    log_line(result.level, result.line);
  }
}

KernelStatus kernel_status() {
  const std::lock_guard<std::mutex> lock(status_mutex);
  return current_status;
}

bool are_kernels_in_use() {
  const df2_kernels_state state = kernel_status().state;
  return state == DF2_KERNELS_ACTIVE || state == DF2_KERNELS_LATE;
}

ggml_backend_buffer_type_t drafter_buffer_type() {
  return are_kernels_in_use() ? packed_buffer_type() : nullptr;
}

}  // namespace df2
