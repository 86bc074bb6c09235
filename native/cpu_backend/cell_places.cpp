#include "cpu_backend/cell_places.h"

#include <algorithm>
#include <exception>
#include <limits>

#include "ggml-backend.h"
#include "ops/attention/attention.h"

namespace df2 {

namespace {

// Read when a graph is planned, on the thread that computes it.
thread_local CellPlaces *current_places = nullptr;

bool is_in_place(const ggml_tensor *input) {
  return (input->flags & GGML_TENSOR_FLAG_INPUT) != 0 && input->op == GGML_OP_NONE && input->data != nullptr &&
         input->buffer != nullptr && ggml_backend_buffer_is_host(input->buffer);
}

// The cache whose rows a node writes; null: none, or at indices that the graph has yet to compute. Values that are kept
// transposed, for attention without flash attention, have rows of one number.
const ggml_tensor *written_cache(const ggml_tensor *node) {
  if (node->ne[0] == 1) {
    return nullptr;
  }
  const ggml_tensor *indices = node->src[1];
  const bool is_list = ggml_nelements(indices) == indices->ne[0] && ggml_is_contiguous(indices);
  const ggml_tensor *cache = node->view_src;
  return is_list && is_in_place(indices) && cache != nullptr && cache->op == GGML_OP_NONE ? cache : nullptr;
}

// The cache whose first cells are an attention node's keys; null: they come from elsewhere.
const ggml_tensor *read_cache(const ggml_tensor *keys) {
  const ggml_tensor *view = keys->op == GGML_OP_CPY ? keys->src[0] : keys;  // converted for attention
  const ggml_tensor *cache = view->view_src;
  const bool is_known =
      cache != nullptr && view->data == cache->data && view->nb[1] == cache->nb[1] && keys->ne[3] == 1;
  return is_known ? cache : nullptr;
}

int64_t index_at(const ggml_tensor *indices, int64_t i) {
  return indices->type == GGML_TYPE_I64 ? static_cast<const int64_t *>(indices->data)[i]
                                        : static_cast<const int32_t *>(indices->data)[i];
}

// slots: of a span, of which one at least holds a key.
PlacedSpan span_of(const int32_t *slots, int64_t n_cells) {
  PlacedSpan span = {0, 0, false, slots};
  int64_t first_cell = 0;
  bool is_run = true;
  int32_t n_held = 0;
  for (int32_t i = 0; i < DF2_ATTENTION_SPAN; ++i) {
    if (slots[i] < 0) {
      continue;
    }
    first_cell = n_held == 0 ? slots[i] - i : first_cell;
    is_run = is_run && slots[i] == first_cell + i;
    span.n_slots = i + 1;
    ++n_held;
  }
  span.has_holes = n_held < span.n_slots;
  // holes at the ends of a run may lie outside the cache
  is_run = is_run && first_cell >= 0 && first_cell + span.n_slots <= n_cells;
  span.first_cell = is_run ? static_cast<int32_t>(first_cell) : -1;
  return span;
}

}  // namespace

PlacedKeys::PlacedKeys() : Claim{kMagic, &rules::attention()} {}

bool CellPlaces::Kind::holds(int64_t cell) const {
  const int32_t position = positions[static_cast<size_t>(cell)];
  return position >= 0 && cells[static_cast<size_t>(position)] == cell;
}

void CellPlaces::begin(int32_t first, int32_t n_rows) {
  first_ = first;
  n_rows_ = n_rows;
  for (Kind &kind : kinds_) {
    kind.n_noted = 0;
  }
  for (Cache &cache : caches_) {
    cache.n_noted = 0;
  }
}

void CellPlaces::clear() {
  caches_.clear();
  kinds_.clear();
  is_lost_ = false;
}

CellPlaces::Cache *CellPlaces::find_cache(const void *data) {
  const auto found = std::find_if(caches_.begin(), caches_.end(), [data](const Cache &c) { return c.data == data; });
  return found != caches_.end() ? &*found : nullptr;
}

CellPlaces::Cache &CellPlaces::add_cache(const void *data, int64_t n_cells, const ggml_tensor *indices) {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind &kind) {
    return kind.indices == indices && kind.n_noted == kind.n_newest &&
           kind.positions.size() == static_cast<size_t>(n_cells);
  });
  Kind *kind = found != kinds_.end() ? &*found : &kinds_.emplace_back();
  kind->positions.resize(static_cast<size_t>(n_cells), -1);
  caches_.push_back({data, kind, 0});
  return caches_.back();
}

void CellPlaces::note(const ggml_tensor *node) noexcept {
  const ggml_tensor *written = written_cache(node);
  if (written == nullptr || is_lost_ || node->ne[1] > std::numeric_limits<int32_t>::max()) {
    return;
  }
  try {
    const ggml_tensor *indices = node->src[1];
    Cache *known = find_cache(written->data);
    Cache &cache = known != nullptr ? *known : add_cache(written->data, node->ne[1], indices);
    if (indices->ne[0] > n_rows_ - cache.n_noted) {
      return;  // other rows than one for each token
    }
    if (cache.n_noted == cache.kind->n_noted) {
      note_rows(cache.kind, indices);
    }
    cache.n_noted += static_cast<int32_t>(indices->ne[0]);
  } catch (const std::exception &) {
    is_lost_ = true;
  }
}

void CellPlaces::note_rows(Kind *kind, const ggml_tensor *indices) {
  const int64_t first = first_ + kind->n_noted;
  kind->indices = indices;
  kind->n_newest = static_cast<int32_t>(indices->ne[0]);
  kind->n_noted += kind->n_newest;
  kind->n_placed = -1;
  kind->cells.resize(std::max(kind->cells.size(), static_cast<size_t>(first + kind->n_newest)), -1);
  for (int64_t i = 0; i < kind->n_newest; ++i) {
    const int64_t cell = index_at(indices, i);
    if (cell < 0 || cell >= static_cast<int64_t>(kind->positions.size())) {
      continue;  // ggml will say so
    }
    kind->cells[static_cast<size_t>(first + i)] = static_cast<int32_t>(cell);
    kind->positions[static_cast<size_t>(cell)] = static_cast<int32_t>(first + i);
    kind->was_in_order = kind->was_in_order && cell == first + i;
  }
}

const PlacedKeys *CellPlaces::find(const ggml_tensor *attention) noexcept {
  const ggml_tensor *keys = attention->src[1];
  const ggml_tensor *mask = attention->src[3];
  const ggml_tensor *read = read_cache(keys);
  const Cache *cache = read != nullptr ? find_cache(read->data) : nullptr;
  if (cache == nullptr || cache->kind->was_in_order || mask == nullptr || is_lost_) {
    return nullptr;
  }
  Kind &kind = *cache->kind;
  // nothing is known of a cache with other rows than a key for each token
  if (kind.n_noted == 0 || mask->ne[1] != kind.n_newest || keys->ne[1] > static_cast<int64_t>(kind.positions.size())) {
    return nullptr;
  }
  try {
    if (kind.n_placed < 0) {
      place(&kind, keys->ne[1]);
    }
  } catch (const std::exception &) {
    is_lost_ = true;
    return nullptr;
  }
  return kind.is_in_order || kind.n_placed != keys->ne[1] ? nullptr : &*kind.placed;
}

void CellPlaces::place(Kind *kind, int64_t n_cells) {
  PlacedKeys &placed = *kind->placed;
  placed.spans.clear();
  placed.unplaced.clear();
  numbers_.clear();
  kind->is_in_order = true;
  // cells of tokens that were dropped may still hold higher positions
  const int32_t end = first_ + kind->n_noted;
  const auto is_placed = [&](int64_t cell) {
    return kind->holds(cell) && kind->positions[static_cast<size_t>(cell)] < end;
  };
  const auto number_of = [&](int64_t cell) { return kind->positions[static_cast<size_t>(cell)] / DF2_ATTENTION_SPAN; };
  for (int64_t cell = 0; cell < n_cells; ++cell) {
    if (!is_placed(cell)) {
      placed.unplaced.push_back(static_cast<int32_t>(cell));
      continue;
    }
    kind->is_in_order = kind->is_in_order && kind->positions[static_cast<size_t>(cell)] == cell;
    if (numbers_.empty() || numbers_.back() != number_of(cell)) {
      numbers_.push_back(number_of(cell));
    }
  }
  std::sort(numbers_.begin(), numbers_.end());
  numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
  placed.slots.assign(numbers_.size() * DF2_ATTENTION_SPAN, -1);
  for (int64_t cell = 0; cell < n_cells; ++cell) {
    if (is_placed(cell)) {
      const auto span = std::lower_bound(numbers_.begin(), numbers_.end(), number_of(cell)) - numbers_.begin();
      const int32_t slot = kind->positions[static_cast<size_t>(cell)] % DF2_ATTENTION_SPAN;
      placed.slots[static_cast<size_t>(span * DF2_ATTENTION_SPAN + slot)] = static_cast<int32_t>(cell);
    }
  }
  for (size_t i = 0; i < numbers_.size(); ++i) {
    placed.spans.push_back(span_of(placed.slots.data() + i * DF2_ATTENTION_SPAN, n_cells));
  }
  kind->n_placed = n_cells;
}

PlacesScope::PlacesScope(CellPlaces *places, int32_t first, int32_t n_rows) : before_(current_places) {
  places->begin(first, n_rows);
  current_places = places;
}

PlacesScope::~PlacesScope() {
  current_places = before_;
}

void note_cache_write(const ggml_tensor *node) noexcept {
  if (current_places != nullptr) {
    current_places->note(node);
  }
}

const PlacedKeys *find_placed_keys(const ggml_tensor *attention) noexcept {
  return current_places != nullptr ? current_places->find(attention) : nullptr;
}

}  // namespace df2
