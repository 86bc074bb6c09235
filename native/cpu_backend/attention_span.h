// A span of keys that lie scattered over their cache, as the kernels want them: one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu_backend/cell_places.h"
#include "ops/attention/attention.h"

namespace df2 {

// Whether a row of a mask [n_cells, n_queries, ...] sees one of these cells.
bool is_any_seen(const ggml_tensor *mask, const std::vector<int32_t> &cells);

// Memory for the masks, keys and values of one span.
class GatheredSpan {
 public:
  GatheredSpan(int64_t max_rows, const ggml_tensor *keys, const ggml_tensor *values);

  size_t bytes() const;

  // Makes masks, keys and values of a whole cache those of the span, slot by slot. What lies in a row stays where it
  // is, the rest is copied to memory of bytes(). A hole is masked, and has some finite key and value. False: no row
  // sees a key of the span, and there is nothing to compute.
  bool gather(uint8_t *memory, const PlacedSpan &span, df2_attention_row *rows, int32_t n_rows,
              df2_attention_cache *keys, df2_attention_cache *values) const;

 private:
  size_t masks_bytes_;
  size_t key_bytes_;  // of one vector
  size_t value_bytes_;
};

}  // namespace df2
