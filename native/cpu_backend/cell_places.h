// Which position of a session's sequence lies in which cell of llama.cpp's K/V caches.
//
// A sum over keys has the same bits only if it is cut in the same places, so attention counts its spans by position. In
// most caches cell i holds position i, and there is nothing to know. Not so in a cache that is cut to a sliding window,
// once it has wrapped around, nor where sequences share a cache.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "cpu_backend/kept_claims.h"
#include "cpu_backend/rule.h"

namespace df2 {

// The keys of positions [s * DF2_ATTENTION_SPAN, (s + 1) * DF2_ATTENTION_SPAN), in their order: slots.
struct PlacedSpan {
  int32_t n_slots;       // up to the last slot that holds a key
  int32_t first_cell;    // slot i is cell first_cell + i; -1: cells lie otherwise
  bool has_holes;        // slots without a key
  const int32_t *cells;  // [n_slots]; -1: a hole
};

// One graph's view of a cache, and the claim of the attention nodes that read it.
struct PlacedKeys : Claim {
  PlacedKeys();
  std::vector<PlacedSpan> spans;  // in the order of their positions, those without a key left out
  std::vector<int32_t> unplaced;  // the other cells: what they hold is not known, and should be masked
  std::vector<int32_t> slots;     // what spans point into
};

// Of one sequence, in all caches of a context.
class CellPlaces {
 public:
  CellPlaces() = default;
  CellPlaces(const CellPlaces &) = delete;
  CellPlaces &operator=(const CellPlaces &) = delete;

  // The next graphs write the keys of n_rows tokens at positions first, first + 1, ...: each as many as come next.
  void begin(int32_t first, int32_t n_rows);

  // The caches were emptied.
  void clear();

  // A SET_ROWS node of a graph that is planned: if it writes a cache, its rows are noted. Indices must be in place by
  // then. The newest place of a position counts: cells of rejected tokens are masked until something else is written
  // there.
  void note(const ggml_tensor *node) noexcept;

  // The keys of a FLASH_ATTN_EXT node in the order of their positions; null: they are in it already, or not known.
  // Stays as it is until more rows are noted.
  const PlacedKeys *find(const ggml_tensor *attention) noexcept;

 private:
  // Caches that are written at the same indices hold the same positions in the same cells.
  struct Kind {
    // Whether a cell's position is known, and no other cell has been written with it since.
    bool holds(int64_t cell) const;

    std::vector<int32_t> cells;            // by position; -1: unknown
    std::vector<int32_t> positions;        // by cell, what was last written there; -1: unknown
    bool was_in_order = true;              // no position was ever written elsewhere than in the cell of its number
    const ggml_tensor *indices = nullptr;  // of the newest rows
    int32_t n_newest = 0;                  // those, all in one graph
    int32_t n_noted = 0;                   // rows since begin()
    int64_t n_placed = -1;                 // cells that `placed` is of; -1: rows were noted since
    bool is_in_order = true;               // those cells
    KeptClaims<PlacedKeys> placed;
  };
  struct Cache {
    const void *data;
    Kind *kind;
    int32_t n_noted;  // rows since begin()
  };

  Cache *find_cache(const void *data);
  Cache &add_cache(const void *data, int64_t n_cells, const ggml_tensor *indices);
  void note_rows(Kind *kind, const ggml_tensor *indices);
  void place(Kind *kind, int64_t n_cells);

  std::deque<Kind> kinds_;
  std::vector<Cache> caches_;
  std::vector<int32_t> numbers_;  // of spans, while they are placed
  int32_t first_ = 0;
  int32_t n_rows_ = 0;
  bool is_lost_ = false;  // for want of memory: nothing is known until clear()
};

// While one exists, the graphs that its thread computes belong to a decode of the sequence.
class PlacesScope {
 public:
  PlacesScope(CellPlaces *places, int32_t first, int32_t n_rows);
  ~PlacesScope();
  PlacesScope(const PlacesScope &) = delete;
  PlacesScope &operator=(const PlacesScope &) = delete;

 private:
  CellPlaces *before_;
};

// CellPlaces::note and find of this thread's scope; without one nothing is noted or known. Called while a graph is
// planned, on the thread that computes it.
void note_cache_write(const ggml_tensor *node) noexcept;
const PlacedKeys *find_placed_keys(const ggml_tensor *attention) noexcept;

}  // namespace df2
