#include "cpu_backend/expert_rows.h"

#include <algorithm>

#include "cpu_backend/work_area.h"

namespace df2 {

size_t ExpertRows::bytes() const {
  return round_up(static_cast<size_t>(n_experts_) * sizeof(int64_t)) +
         round_up(static_cast<size_t>(n_rows_) * sizeof(Row));
}

void ExpertRows::place(uint8_t *work) {
  ends_ = reinterpret_cast<int64_t *>(work);
  rows_ = reinterpret_cast<Row *>(work + round_up(static_cast<size_t>(n_experts_) * sizeof(int64_t)));
}

int64_t ExpertRows::expert_of(int64_t used, int64_t token) const {
  const ggml_tensor *ids = op_->src[2];
  const char *id = static_cast<const char *>(ids->data) + static_cast<size_t>(used) * ids->nb[0] +
                   static_cast<size_t>(token) * ids->nb[1];
  const int32_t expert = *reinterpret_cast<const int32_t *>(id);
  return expert >= 0 && expert < n_experts_ ? expert : -1;
}

template <typename Visit>
void ExpertRows::for_each_row(const Visit &visit) const {
  const ggml_tensor *ids = op_->src[2];
  for (int64_t token = 0; token < ids->ne[1]; ++token) {
    for (int64_t used = 0; used < ids->ne[0]; ++used) {
      visit(used, token, expert_of(used, token));
    }
  }
}

void ExpertRows::sort() {
  std::fill(ends_, ends_ + n_experts_, 0);
  for_each_row([&](int64_t used, int64_t token, int64_t expert) {
    if (expert >= 0) {
      ++ends_[expert];
    } else {
      std::fill_n(output_of(used, token), op_->ne[0], 0.0f);
    }
  });
  int64_t n_before = 0;
  for (int64_t expert = 0; expert < n_experts_; ++expert) {
    const int64_t n = ends_[expert];
    ends_[expert] = n_before;  // for now where its next row goes
    n_before += n;
  }
  for_each_row([&](int64_t used, int64_t token, int64_t expert) {
    if (expert >= 0) {
      rows_[ends_[expert]++] = {static_cast<int32_t>(used), static_cast<int32_t>(token)};
    }
  });
}

}  // namespace df2
