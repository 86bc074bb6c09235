// Weights as ggml stores them: which products with them are computed row by row, and memory that ggml's other extra
// buffer types cannot have.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

namespace df2 {

// Whether ggml's dot product for one row computes a node: a product with these types and strides.
bool can_multiply_rowwise(const ggml_tensor *op);

// Whether a tensor can be read where it is, in ggml's own layout.
bool is_plain(const ggml_tensor *tensor);

// The buffer type of weights that another one would repack, for products that depend on the number of rows. Those that
// none asks for are left to the file's mapping: a model larger than memory stays usable.
ggml_backend_buffer_type_t plain_buffer_type();

}  // namespace df2
