// Targets in a llama.cpp that has a GPU, whose memory for the CPU's weights comes before packed memory. test_gpu_build
// TARGET.gguf
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "dflash2.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

namespace {

// As ggml-backend-impl.h declares them.
struct DeviceInterface {
  const char *(*get_name)(ggml_backend_dev_t device);
  const char *(*get_description)(ggml_backend_dev_t device);
  void (*get_memory)(ggml_backend_dev_t device, size_t *free, size_t *total);
  enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t device);
  void (*get_props)(ggml_backend_dev_t device, struct ggml_backend_dev_props *props);
  ggml_backend_t (*init_backend)(ggml_backend_dev_t device, const char *params);
  ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t device);
  ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t device);
  ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t device, void *data, size_t size, size_t max_size);
  bool (*supports_op)(ggml_backend_dev_t device, const struct ggml_tensor *op);
  bool (*supports_buft)(ggml_backend_dev_t device, ggml_backend_buffer_type_t type);
  bool (*offload_op)(ggml_backend_dev_t device, const struct ggml_tensor *op);
  void *events[3];
};

struct Device {
  DeviceInterface interface;
  ggml_backend_reg_t registry;
  void *context;
};

// A GPU that is the CPU under another name.
Device make_gpu() {
  Device gpu = {};
  gpu.registry = ggml_backend_cpu_reg();
  gpu.interface.get_name = [](ggml_backend_dev_t) { return "GPU"; };
  gpu.interface.get_description = gpu.interface.get_name;
  gpu.interface.get_memory = [](ggml_backend_dev_t, size_t *free, size_t *total) { *free = *total = size_t{1} << 30; };
  gpu.interface.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
  gpu.interface.get_props = [](ggml_backend_dev_t, ggml_backend_dev_props *props) {
    *props = {};
    props->name = props->description = "GPU";
    props->type = GGML_BACKEND_DEVICE_TYPE_GPU;
  };
  gpu.interface.init_backend = [](ggml_backend_dev_t, const char *) { return ggml_backend_cpu_init(); };
  gpu.interface.get_buffer_type = [](ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); };
  gpu.interface.get_host_buffer_type = gpu.interface.get_buffer_type;
  gpu.interface.supports_op = [](ggml_backend_dev_t, const ggml_tensor *) { return true; };
  gpu.interface.supports_buft = [](ggml_backend_dev_t, ggml_backend_buffer_type_t) { return true; };
  return gpu;
}

std::vector<std::string> log_lines;

uint64_t packed_bytes(df2_target *target) {
  df2_session *session = nullptr;
  CHECK_STATUS(df2_session_create(&session, target, nullptr, nullptr), DF2_OK);
  df2_stats stats = {};
  stats.struct_size = sizeof(stats);
  CHECK_STATUS(df2_session_stats_get(session, &stats), DF2_OK);
  df2_session_free(session);
  return stats.target_packed_bytes;
}

bool was_logged(const char *text) {
  for (const std::string &line : log_lines) {
    if (line.find(text) != std::string::npos) {
      return true;
    }
  }
  return false;
}

void test_own(const char *path) {
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_open(&target, path, nullptr), DF2_OK);
  CHECK(packed_bytes(target) > 0);
  df2_target_free(target);
  CHECK(!was_logged("no_host"));
}

void test_attached(const char *path, bool no_host) {
  log_lines.clear();
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  params.no_host = no_host;
  llama_model *model = llama_model_load_from_file(path, params);
  llama_context_params context_params = llama_context_default_params();
  context_params.n_ctx = 256;
  llama_context *context = llama_init_from_model(model, context_params);
  df2_target *target = nullptr;
  CHECK_STATUS(df2_target_attach(&target, context, nullptr), DF2_OK);
  CHECK((packed_bytes(target) > 0) == no_host);
  CHECK(was_logged("no_host = true") == !no_host);
  df2_target_free(target);
  llama_free(context);
  llama_model_free(model);
}

}  // namespace

int main(int /*argc*/, char **argv) {
  static Device gpu = make_gpu();
  ggml_backend_device_register(reinterpret_cast<ggml_backend_dev_t>(&gpu));
  llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
  df2_log_set([](int32_t, const char *message, void *) { log_lines.emplace_back(message); }, nullptr);
  CHECK_STATUS(df2_kernels_enable(), DF2_OK);
  df2_kernels_info info = {};
  info.struct_size = sizeof(info);
  CHECK_STATUS(df2_kernels_info_get(&info), DF2_OK);
  CHECK(info.state == DF2_KERNELS_ACTIVE);
  test_own(argv[1]);
  test_attached(argv[1], false);
  test_attached(argv[1], true);
  return report("GPU build");
}
