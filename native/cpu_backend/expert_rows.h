// The rows of a MUL_MAT_ID, each a token and one of the experts it goes through, sorted by expert.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu_backend/node.h"
#include "ggml.h"

namespace df2 {

class ExpertRows {
 public:
  explicit ExpertRows(const ggml_tensor *op)
      : op_(op), n_experts_(op->src[0]->ne[2]), n_rows_(op->src[2]->ne[0] * op->src[2]->ne[1]) {}

  int64_t n_experts() const { return n_experts_; }

  // Of all experts together; fewer where a token names an expert that there is not.
  int64_t n_rows() const { return n_rows_; }

  // Tables, in the work area.
  size_t bytes() const;
  void place(uint8_t *work);

  // By one thread, before the others read anything. Rows of experts that there are not become zeros: ggml asserts, and
  // they are no reason to end a process.
  void sort();

  // Rows [begin, end) are an expert's.
  int64_t begin(int64_t expert) const { return expert > 0 ? ends_[expert - 1] : 0; }
  int64_t end(int64_t expert) const { return ends_[expert]; }

  // Where in src1 a row's input is: dimensions 1 and 2.
  int64_t input_place(int64_t row) const { return rows_[row].used % op_->src[1]->ne[1]; }
  int64_t token(int64_t row) const { return rows_[row].token; }

  float *output(int64_t row) const { return output_of(rows_[row].used, rows_[row].token); }

 private:
  struct Row {
    int32_t used;
    int32_t token;
  };

  float *output_of(int64_t used, int64_t token) const {
    return reinterpret_cast<float *>(const_cast<char *>(row_address(op_, used, token, 0)));
  }

  // The expert of a token's row, or -1 if there is no such expert.
  int64_t expert_of(int64_t used, int64_t token) const;

  template <typename Visit>
  void for_each_row(const Visit &visit) const;

  const ggml_tensor *op_;
  int64_t n_experts_;
  int64_t n_rows_;
  int64_t *ends_ = nullptr;
  Row *rows_ = nullptr;
};

}  // namespace df2
