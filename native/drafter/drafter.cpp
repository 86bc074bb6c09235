#include "drafter/drafter.h"

#include <utility>

#include "common/error.h"
#include "ggml-cpu.h"

namespace df2 {

namespace {

ggml_context_ptr new_context(size_t n_tensors) {
  const ggml_init_params init = {/*.mem_size =*/n_tensors * ggml_tensor_overhead(), /*.mem_buffer =*/nullptr,
                                 /*.no_alloc =*/true};
  ggml_context_ptr context(ggml_init(init));
  if (context == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
  }
  return context;
}

// Whether weights of this type and shape can be multiplied when they are in a buffer of the type given.
bool can_multiply_in(ggml_backend_buffer_type_t buffer_type, const TensorInfo &info) {
  const ggml_context_ptr context = new_context(3);
  const ggml_backend_buffer_ptr nothing(ggml_backend_buft_alloc_buffer(buffer_type, 0));
  if (nothing == nullptr) {
    throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
  }
  ggml_tensor *weights = ggml_new_tensor(context.get(), info.type, 2, info.ne);
  weights->buffer = nothing.get();
  ggml_tensor *product =
      ggml_mul_mat(context.get(), weights, ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, info.ne[0], 1));
  return ggml_backend_dev_supports_op(ggml_backend_buft_get_device(buffer_type), product);
}

// Whether the CPU can multiply with matrices of this type as they are in the file, and read their rows.
bool is_computable(ggml_type type) {
  const ggml_type_traits *traits = ggml_get_type_traits(type);
  return type == GGML_TYPE_F32 ||
         (traits != nullptr && traits->to_float != nullptr && ggml_get_type_traits_cpu(type)->vec_dot != nullptr);
}

ggml_tensor *new_tensor(ggml_context *context, const DrafterTensor &tensor) {
  ggml_tensor *created = ggml_new_tensor(context, tensor.info.type, tensor.n_dims, tensor.info.ne);
  ggml_set_name(created, tensor.info.name.c_str());
  return created;
}

// Gives each tensor of a file its place. What is packed is written by fill_packed().
class WeightPlacer {
 public:
  // packed_type: null if nothing is to be packed.
  WeightPlacer(const DrafterFile &file, ggml_backend_buffer_type_t packed_type)
      : file_(file), packed_type_(packed_type) {
    mapped.context = new_context(file.tensors().size());
    mapped.buffer.reset(ggml_backend_cpu_buffer_from_ptr(const_cast<uint8_t *>(file.map().data()), file.map().size()));
    if (mapped.buffer == nullptr) {
      throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
    }
    ggml_backend_buffer_set_usage(mapped.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    // one more for a copy of token_embd, to multiply with
    packed.context = new_context(file.tensors().size() + 1);
  }

  DrafterWeights place_all() {
    DrafterWeights weights = {};
    weights.layers.resize(static_cast<size_t>(file_.params().n_layer));
    const DrafterTensor *token_embd = nullptr;
    for (const DrafterTensor &tensor : file_.tensors()) {
      tensor.place.in(weights) = place(tensor);
      token_embd = tensor.place.of_drafter == &DrafterWeights::token_embd ? &tensor : token_embd;
    }
    if (weights.output == nullptr && token_embd != nullptr) {
      ggml_tensor *copy = pack_later(*token_embd);
      weights.output = copy != nullptr ? copy : weights.token_embd;
    }
    fill_packed();
    return weights;
  }

  WeightMemory mapped;
  WeightMemory packed;
  WeightMemory ids;

 private:
  ggml_tensor *place(const DrafterTensor &tensor) {
    if (tensor.use == TensorUse::kIds) {
      return convert_ids(tensor.info);
    }
    if (tensor.use != TensorUse::kNumbers && !is_computable(tensor.info.type)) {
      file_.fail(DF2_EUNSUPPORTED, format("tensor '%s' has type %s, which the CPU cannot multiply with",
                                          tensor.info.name.c_str(), ggml_type_name(tensor.info.type)));
    }
    ggml_tensor *packed_tensor = tensor.use == TensorUse::kProduct ? pack_later(tensor) : nullptr;
    return packed_tensor != nullptr ? packed_tensor : map(tensor);
  }

  ggml_tensor *map(const DrafterTensor &tensor) {
    ggml_tensor *created = new_tensor(mapped.context.get(), tensor);
    auto *data = const_cast<uint8_t *>(tensor.info.data);
    if (ggml_backend_tensor_alloc(mapped.buffer.get(), created, data) != GGML_STATUS_SUCCESS) {
      file_.fail(DF2_EBACKEND, format("tensor '%s' cannot be placed in memory", tensor.info.name.c_str()));
    }
    return created;
  }

  // Null if it cannot be packed.
  ggml_tensor *pack_later(const DrafterTensor &tensor) {
    if (packed_type_ == nullptr || !can_multiply_in(packed_type_, tensor.info)) {
      return nullptr;
    }
    ggml_tensor *created = new_tensor(packed.context.get(), tensor);
    to_pack_.emplace_back(created, &tensor.info);
    return created;
  }

  void fill_packed() {
    if (to_pack_.empty()) {
      return;
    }
    packed.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(packed.context.get(), packed_type_));
    if (packed.buffer == nullptr) {
      file_.fail(DF2_ENOMEM, "no memory for packed weights");
    }
    ggml_backend_buffer_set_usage(packed.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (const auto &[tensor, info] : to_pack_) {
      ggml_backend_tensor_set(tensor, info->data, 0, info->size_bytes);
    }
  }

  // 64-bit token ids as an I32 tensor [1, length], which ggml can look rows up in.
  ggml_tensor *convert_ids(const TensorInfo &info) {
    ids.context = new_context(1);
    ggml_tensor *converted = ggml_new_tensor_2d(ids.context.get(), GGML_TYPE_I32, 1, info.ne[0]);
    ids.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ids.context.get(), ggml_backend_cpu_buffer_type()));
    if (ids.buffer == nullptr) {
      throw Error(DF2_ENOMEM, "out of memory while loading the drafter");
    }
    const auto *wide = reinterpret_cast<const int64_t *>(info.data);
    const std::vector<int32_t> narrow(wide, wide + info.ne[0]);
    ggml_backend_tensor_set(converted, narrow.data(), 0, narrow.size() * sizeof(int32_t));
    return converted;
  }

  const DrafterFile &file_;
  ggml_backend_buffer_type_t packed_type_;
  std::vector<std::pair<ggml_tensor *, const TensorInfo *>> to_pack_;
};

}  // namespace

Drafter::Drafter(DrafterFile file, ggml_backend_buffer_type_t packed_type, const std::optional<DrafterKernels> &kernels)
    : file_(std::move(file)), kernels_(kernels) {
  WeightPlacer placer(file_, packed_type);
  weights_ = placer.place_all();
  mapped_ = std::move(placer.mapped);
  packed_ = std::move(placer.packed);
  ids_ = std::move(placer.ids);
}

size_t Drafter::mapped_bytes() const {
  size_t total = 0;
  ggml_context *context = mapped_.context.get();
  for (ggml_tensor *tensor = ggml_get_first_tensor(context); tensor != nullptr;
       tensor = ggml_get_next_tensor(context, tensor)) {
    total += ggml_nbytes(tensor);
  }
  return total;
}

size_t Drafter::packed_bytes() const {
  return packed_.buffer != nullptr ? ggml_backend_buffer_get_size(packed_.buffer.get()) : 0;
}

}  // namespace df2
