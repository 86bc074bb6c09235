#include "cpu_backend/attention_span.h"

#include <algorithm>
#include <cstring>

#include "cpu_backend/node.h"
#include "cpu_backend/work_area.h"

namespace df2 {

namespace {

constexpr uint16_t kMasked = 0xfc00;  // minus infinity

// The masks of rows of which some share one, one after the other; the rows then point to them. Whether a row sees a
// key.
bool gather_masks(uint16_t *memory, const PlacedSpan &span, df2_attention_row *rows, int32_t n_rows) {
  bool is_seen = false;
  const uint16_t *source = nullptr;
  uint16_t *mask = memory;
  for (int32_t r = 0; r < n_rows; ++r) {
    if (rows[r].mask != source) {
      mask += source != nullptr ? DF2_ATTENTION_SPAN : 0;
      source = rows[r].mask;
      for (int32_t i = 0; i < span.n_slots; ++i) {
        mask[i] = span.cells[i] >= 0 ? source[span.cells[i]] : kMasked;
        is_seen = is_seen || mask[i] != kMasked;
      }
    }
    rows[r].mask = mask;
  }
  return is_seen;
}

void gather_vectors(uint8_t *memory, const PlacedSpan &span, size_t vector_bytes, df2_attention_cache *cache) {
  const auto *source = static_cast<const uint8_t *>(cache->data);
  for (int32_t i = 0; i < span.n_slots; ++i) {
    uint8_t *vector = memory + static_cast<size_t>(i) * vector_bytes;
    if (span.cells[i] >= 0) {
      std::memcpy(vector, source + static_cast<size_t>(span.cells[i]) * cache->stride_bytes, vector_bytes);
    } else {
      std::memset(vector, 0, vector_bytes);
    }
  }
  cache->data = memory;
  cache->stride_bytes = vector_bytes;
}

}  // namespace

bool is_any_seen(const ggml_tensor *mask, const std::vector<int32_t> &cells) {
  for (int64_t row = 0; row < ggml_nrows(mask); ++row) {
    const int64_t i1 = row % mask->ne[1];
    const int64_t i2 = row / mask->ne[1] % mask->ne[2];
    const auto *seen = reinterpret_cast<const uint16_t *>(row_address(mask, i1, i2, row / mask->ne[1] / mask->ne[2]));
    if (std::any_of(cells.begin(), cells.end(), [seen](int32_t cell) { return seen[cell] != kMasked; })) {
      return true;
    }
  }
  return false;
}

GatheredSpan::GatheredSpan(int64_t max_rows, const ggml_tensor *keys, const ggml_tensor *values)
    : masks_bytes_(round_up(static_cast<size_t>(max_rows) * DF2_ATTENTION_SPAN * sizeof(uint16_t))),
      key_bytes_(ggml_row_size(keys->type, keys->ne[0])),
      value_bytes_(ggml_row_size(values->type, values->ne[0])) {}

size_t GatheredSpan::bytes() const {
  return masks_bytes_ + round_up(DF2_ATTENTION_SPAN * key_bytes_) + round_up(DF2_ATTENTION_SPAN * value_bytes_);
}

bool GatheredSpan::gather(uint8_t *memory, const PlacedSpan &span, df2_attention_row *rows, int32_t n_rows,
                          df2_attention_cache *keys, df2_attention_cache *values) const {
  const bool is_run = span.first_cell >= 0;
  if (is_run && !span.has_holes) {
    for (int32_t r = 0; r < n_rows; ++r) {
      rows[r].mask += span.first_cell;
    }
  } else if (!gather_masks(reinterpret_cast<uint16_t *>(memory), span, rows, n_rows)) {
    return false;
  }
  uint8_t *vectors = memory + masks_bytes_;
  if (is_run) {
    const auto first = static_cast<size_t>(span.first_cell);
    keys->data = static_cast<const uint8_t *>(keys->data) + first * keys->stride_bytes;
    values->data = static_cast<const uint8_t *>(values->data) + first * values->stride_bytes;
  } else {
    gather_vectors(vectors, span, key_bytes_, keys);
    gather_vectors(vectors + round_up(DF2_ATTENTION_SPAN * key_bytes_), span, value_bytes_, values);
  }
  return true;
}

}  // namespace df2
