#include "cpu_backend/plain_weights.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "cpu_backend/ggml_cpu_internals.h"
#include "cpu_backend/packed_buffer.h"
#include "cpu_backend/packed_weights.h"
#include "cpu_backend/source_pages.h"
#include "cpu_backend/stock.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

bool is_known_type(const ggml_tensor *weights, const ggml_tensor *x) {
  const ggml_type_traits_cpu *traits = ggml_get_type_traits_cpu(weights->type);
  if (traits->vec_dot == nullptr) {
    return false;
  }
  const bool is_convertible =
      x->type == GGML_TYPE_F32 && ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != nullptr;
  return x->type == traits->vec_dot_type || is_convertible;
}

// -- The buffer type: ggml's own memory for the CPU, under another name -------------------------------------------

void set_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor *tensor, const void *data, size_t offset, size_t size) {
  std::memcpy(static_cast<char *>(tensor->data) + offset, data, size);
  SourcePages().forget(data, size, is_copy(tensor));
}

const char *get_name(ggml_backend_buffer_type_t /*type*/) {
  return "DFLASH2_PLAIN";
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
  if (buffer == nullptr) {
    PackedCount::note_refusal(size);  // without kernels they stay in the file's mapping, or llama.cpp repacks them
    return nullptr;
  }
  buffer->buft = type;
  buffer->iface.set_tensor = set_tensor;
  return buffer;
}

size_t get_alignment(ggml_backend_buffer_type_t /*type*/) {
  return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

// Whether another extra buffer type would have the weights of a node. Asks as llama.cpp does, with an empty buffer.
bool is_wanted_by_another(ggml_backend_dev_t device, const ggml_tensor *op) {
  ggml_tensor *weights = op->src[0];
  const ggml_backend_buffer_t before = weights->buffer;
  bool is_wanted = false;
  for (ggml_backend_buffer_type_t type : ggml_backend_cpu_get_extra_buffer_types()) {
    if (is_wanted || type == packed_buffer_type() || type == plain_buffer_type()) {
      continue;
    }
    const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(type, 0));
    weights->buffer = nothing.get();
    is_wanted = static_cast<ggml::cpu::extra_buffer_type *>(type->context)->supports_op(device, op);
    weights->buffer = before;
  }
  return is_wanted;
}

// Whether a loader asks where to put weights: with a buffer of no size.
bool is_question(const ggml_tensor *op) {
  return std::any_of(std::begin(op->src), std::end(op->src), [](const ggml_tensor *source) {
    return source != nullptr && source->buffer != nullptr && source->buffer->buft == plain_buffer_type() &&
           source->buffer->size == 0;
  });
}

class PlainBufferType final : public ggml::cpu::extra_buffer_type {
 public:
  bool supports_op(ggml_backend_dev_t device, const ggml_tensor *op) override {
    if (!is_question(op)) {
      return true;  // weights that are here already: ggml's CPU back end can do with them what it can with any
    }
    return !wants_stock() && can_multiply_rowwise(op) && is_wanted_by_another(device, op);
  }

  // The packed buffer type answers for all rules.
  ggml::cpu::tensor_traits *get_tensor_traits(const ggml_tensor * /*op*/) override { return nullptr; }
};

}  // namespace

bool can_multiply_rowwise(const ggml_tensor *op) {
  const bool is_experts = op->op == GGML_OP_MUL_MAT_ID;
  if ((op->op != GGML_OP_MUL_MAT && !is_experts) || (is_experts && op->src[2]->type != GGML_TYPE_I32)) {
    return false;
  }
  const ggml_tensor *weights = op->src[0];
  const ggml_tensor *x = op->src[1];
  // op_params[1] marks products that ggml computes as a transform
  return op->op_params[1] == 0 && is_known_type(weights, x) && weights->nb[0] == ggml_type_size(weights->type) &&
         x->nb[0] == ggml_type_size(x->type) && op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float);
}

bool is_plain(const ggml_tensor *tensor) {
  return tensor->buffer != nullptr &&
         (ggml_backend_buffer_is_host(tensor->buffer) || tensor->buffer->buft == plain_buffer_type());
}

ggml_backend_buffer_type_t plain_buffer_type() {
  static ggml_backend_buffer_type type = {
      /*.iface =*/{get_name, alloc_buffer, get_alignment, nullptr, nullptr, nullptr},
      /*.device =*/ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
      /*.context =*/new PlainBufferType(),  // never destroyed: ggml may ask for it until the process is gone
  };
  return &type;
}

}  // namespace df2
