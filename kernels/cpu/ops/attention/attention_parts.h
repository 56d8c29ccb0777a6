#ifndef STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ATTENTION_PARTS_H_
#define STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ATTENTION_PARTS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/math.h"

// Code that both forms of attention on a CPU share.
namespace stagecoach::kernels {

// The most queries, and keys, of a tile.
constexpr int64_t kPositionTile = 64;
// If a query sees a part of the keys, scores are skipped in blocks of this many keys and queries.
constexpr int64_t kSeenBlock = 16;
// The score of a key that a query does not see; and the largest of no keys, which is finite, so
// that their difference is not NaN.
constexpr float kNoScore = -std::numeric_limits<float>::infinity();
constexpr float kLowestScore = std::numeric_limits<float>::lowest();

// Returns e^x, which is 0 far below 0.
inline float SoftmaxWeight(float x) { return x < -87.0F ? 0.0F : FastExp(x); }

// Returns the scale of scores that a shape asks for.
inline float ScoreScale(float scale, int64_t head_size) {
  return scale > 0.0F ? scale : 1.0F / std::sqrt(static_cast<float>(head_size));
}

// A cap c of scores; 0: none.
struct ScoreCap {
  explicit ScoreCap(float cap_in) : cap(cap_in), inverse(cap_in > 0.0F ? 1.0F / cap_in : 0.0F) {}
  explicit operator bool() const { return cap > 0.0F; }
  float operator()(float score) const { return cap * Tanh(score * inverse); }
  // Returns the derivative, from the score that is capped; 0 for kNoScore.
  float Slope(float capped) const {
    const float share = capped * inverse;
    return TanhDerivative(share < -1.0F ? -1.0F : share);
  }

  float cap, inverse;
};

// Which keys of a tile the queries of a tile see: those of positions from first(query) to the
// query's own.
class SeenKeys {
 public:
  struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
  };

  // There are n keys from position `keys` on, and m queries from position `queries` on. first(c) is
  // the first position that query c sees, and no less than that of query c - 1.
  template <typename First>
  SeenKeys(int64_t keys, int64_t n, int64_t queries, int64_t m, First first)
      : n_(n), m_(m), ahead_(keys - queries), begins_late_(first(m - 1) > keys) {
    if (!begins_late_) return;
    int64_t r = 0;
    for (int64_t c = 0; c < m; ++c) {
      for (; r < n && keys + r < first(c); ++r) end_[static_cast<size_t>(r)] = c;
      begin_[static_cast<size_t>(c)] = r;
    }
    for (; r < n; ++r) end_[static_cast<size_t>(r)] = m;
  }

  // Calls body(key, count, queries) for blocks of keys that some queries see: their scores are
  // computed, and no others.
  template <typename Body>
  void ForEachKeyBlock(Body body) const {
    const int64_t block = SeesAll() ? n_ : kSeenBlock;
    for (int64_t r = 0; r < n_; r += block) {
      const Range queries = QueriesOf(r);
      if (!queries.empty()) body(r, std::min(block, n_ - r), queries);
    }
  }
  // Calls body(key, queries) for each key of these blocks.
  template <typename Body>
  void ForEachKey(Body body) const {
    ForEachKeyBlock([&](int64_t first, int64_t count, Range queries) {
      for (int64_t r = first; r < first + count; ++r) body(r, queries);
    });
  }
  // Calls body(query, count, keys) for all queries; the keys that they see may be none.
  template <typename Body>
  void ForEachQueryBlock(Body body) const {
    const int64_t block = SeesAll() ? m_ : kSeenBlock;
    for (int64_t c = 0; c < m_; c += block) body(c, std::min(block, m_ - c), KeysOf(c));
  }

  // Sets what was computed of keys that a query does not see to kNoScore.
  void Hide(float* scores, int64_t stride) const {
    if (SeesAll()) return;
    ForEachKey([&](int64_t r, Range queries) {
      float* const row = scores + r * stride;
      std::fill(row + queries.begin, row + std::clamp(ahead_ + r, queries.begin, queries.end),
                kNoScore);
      if (!begins_late_) return;
      std::fill(row + std::clamp(End(r), queries.begin, queries.end), row + queries.end, kNoScore);
    });
  }

 private:
  static int64_t RoundedDown(int64_t value) { return value / kSeenBlock * kSeenBlock; }
  bool SeesAll() const { return !begins_late_ && ahead_ + n_ <= 1; }
  // Returns the first query for which a key is too early.
  int64_t End(int64_t key) const { return begins_late_ ? end_[static_cast<size_t>(key)] : m_; }
  // Take the first key, or query, of a block.
  Range QueriesOf(int64_t r) const {
    if (SeesAll()) return {0, m_};
    const int64_t last = std::min(r + kSeenBlock, n_) - 1;
    return {RoundedDown(std::max<int64_t>(ahead_ + r, 0)),
            std::min(RoundedDown(End(last) + kSeenBlock - 1), m_)};
  }
  Range KeysOf(int64_t c) const {
    if (SeesAll()) return {0, n_};
    const int64_t begin = begins_late_ ? begin_[static_cast<size_t>(c)] : 0;
    return {begin == n_ ? n_ : RoundedDown(begin), std::min(n_, c + kSeenBlock - ahead_)};
  }

  const int64_t n_, m_;
  const int64_t ahead_;     // of the first key, before the first query
  const bool begins_late_;  // some query does not see the first key, because it is too early
  // If so: the first key that a query sees, and the first query for which a key is too early.
  std::array<int64_t, kPositionTile> begin_;
  std::array<int64_t, kPositionTile> end_;
};

inline void CapScores(ScoreCap cap, const SeenKeys& seen, float* scores, int64_t stride) {
  if (!cap) return;
  seen.ForEachKey([&, cap](int64_t r, SeenKeys::Range queries) {
    float* const row = scores + r * stride;
    for (int64_t c = queries.begin; c < queries.end; ++c) row[c] = cap(row[c]);
  });
}

// The sums of each query of a tile, over the keys so far.
struct SoftmaxSums {
  float* largest;
  float* correction;  // factor for the sums before the last tile of keys
  float* total;
};

// Computes the online softmax (Milakov & Gimelshein 2018): scores (keys, m queries), whose rows
// are `stride` apart, become weights relative to the largest of this tile and those before; `total`
// becomes their sum, and `correction` the factor that accounts for a new largest score. Before the
// first tile, `largest` is kLowestScore and `total` 0.
inline void OnlineSoftmax(int64_t m, const SeenKeys& seen, float* scores, int64_t stride,
                          const SoftmaxSums& sums) {
  float* __restrict const largest = sums.largest;
  float* __restrict const correction = sums.correction;
  float* __restrict const total = sums.total;
  std::copy_n(largest, m, correction);
  seen.ForEachKey([=](int64_t r, SeenKeys::Range queries) {
    const float* __restrict const row = scores + r * stride;
    for (int64_t c = queries.begin; c < queries.end; ++c) {
      largest[c] = largest[c] < row[c] ? row[c] : largest[c];
    }
  });
  for (int64_t c = 0; c < m; ++c) {
    correction[c] = SoftmaxWeight(correction[c] - largest[c]);
    total[c] *= correction[c];
  }
  seen.ForEachKey([=](int64_t r, SeenKeys::Range queries) {
    float* __restrict const row = scores + r * stride;
    for (int64_t c = queries.begin; c < queries.end; ++c) {
      row[c] = SoftmaxWeight(row[c] - largest[c]);
      total[c] += row[c];
    }
  });
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ATTENTION_PARTS_H_
