#ifndef STAGECOACH_ENGINE_DATA_TOKENIZER_BPE_MERGES_H_
#define STAGECOACH_ENGINE_DATA_TOKENIZER_BPE_MERGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace stagecoach::engine {

// The merges of a byte-pair encoding (Sennrich, Haddow, Birch 2016, "Neural machine translation of
// rare words with subword units"): repeatedly replaces the pair of lowest rank in a sequence of
// symbols, the leftmost if it occurs several times, with one symbol, until none occurs. Takes O(n
// log n) for n symbols. Thread-safe once all are added.
class BpeMerges {
 public:
  void Reserve(size_t merges) { merges_.reserve(merges); }
  // Adds a merge. If the same pair is added twice, the last counts.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
    merges_.insert_or_assign(Pair(left, right), Merge{rank, merged});
  }

  // The buffers of Apply, so that it need not allocate them.
  class Scratch {
    friend class BpeMerges;
    struct Symbol {
      int32_t id;  // -1: merged into the one before
      int32_t previous, next;
    };
    struct Candidate {
      int32_t rank;
      int32_t position;  // of the left symbol
      int32_t left, right, merged;
    };
    std::vector<Symbol> symbols_;
    std::vector<Candidate> heap_;
  };
  // Merges `symbols` in place. Pre-condition: there are fewer than 2^31.
  void Apply(std::vector<int32_t>& symbols, Scratch& scratch) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  static uint64_t Pair(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void Push(int32_t position, Scratch& scratch) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_TOKENIZER_BPE_MERGES_H_
