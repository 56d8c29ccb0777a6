#include "kernels/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/status_macros.h"
#include "kernels/cpu/ops/attention/attention_parts.h"
#include "kernels/cpu/ops/attention/rotary.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/ops/tile_product.h"
#include "kernels/cpu/products/lane_sum.h"
#include "kernels/ops/attention.h"

namespace stagecoach::kernels {
namespace {

// Where several positions come at once, tiles of them are multiplied, as in attention.cc; where
// rows are sequences, each is by itself.
//
// Names of extents are those of kernels/ops/attention.h. Element is the type of activations. The
// cache, in float, is keys (G, T, D), then values (G, T, D), so that a head reads both from the
// first to the last.
template <typename Element>
class CpuCachedAttention final : public CachedAttentionOp {
 public:
  CpuCachedAttention(const CachedAttentionShape& shape, int slots)
      : R_(shape.rows),
        T_(shape.positions),
        H_(shape.heads),
        G_(shape.kv_heads),
        D_(shape.head_size),
        sequences_(shape.sequences),
        rows_are_sequences_(shape.rows_are_sequences),
        slots_(slots),
        W_(shape.window),
        scale_(ScoreScale(shape.scale, D_)),
        cap_(shape.score_cap),
        M_(rows_are_sequences_ || R_ == 1 ? 1 : Tiling(R_, kPositionTile).size),
        query_tiles_((R_ + M_ - 1) / M_) {
    if (shape.rotary_base > 0.0F) {
      rotary_ = SharedRotary(T_, D_, shape.rotary_base, shape.rotary_scaling, shape.rotary_size);
    }
  }

  int64_t cache_bytes() const override {
    return sequences_ * SequenceFloats() * SizeOf(DType::kFloat32);
  }
  int64_t workspace_bytes() const override {
    return slots_ * SlotFloats() * SizeOf(DType::kFloat32);
  }

  absl::Status Forward(Stream& stream, const CachedRow* rows, const Tensor& qkv, std::byte* cache,
                       const Tensor& y, std::byte* workspace) override {
    const auto at = [&](int64_t r) {
      return rows_are_sequences_ ? rows[r] : CachedRow{rows->position + r, rows->sequence};
    };
    const auto keys_of = [&](int64_t r, int64_t g) {
      return reinterpret_cast<float*>(cache) + at(r).sequence * SequenceFloats() + g * T_ * D_;
    };
    const int64_t to_values = G_ * T_ * D_;
    CpuStream& cpu = AsCpu(stream);
    cpu.ParallelFor(static_cast<int>(R_ * G_), [&](int task, int) {
      const int64_t r = task / G_, g = task % G_, position = at(r).position;
      if (position >= T_) return;
      float* const key = keys_of(r, g) + position * D_;
      Load(position, 1.0F, Part(qkv, r, H_ + g), key);
      Convert(Part(qkv, r, H_ + G_ + g), D_, key + to_values);
    });
    // One head after the other, while its keys and values are in a cache.
    cpu.ParallelFor(static_cast<int>(H_ * query_tiles_), [&](int task, int slot) {
      const int64_t h = task / query_tiles_;
      const int64_t begin = task % query_tiles_ * M_;
      const int64_t first = at(begin).position;
      const int64_t m = std::min({T_ - first, R_ - begin, M_});
      if (m <= 0) return;
      const float* const keys = keys_of(begin, h / (H_ / G_));
      float* const scratch = reinterpret_cast<float*>(workspace) + slot * SlotFloats();
      for (int64_t c = 0; c < m; ++c) {
        Load(first + c, scale_, Part(qkv, begin + c, h), scratch + c * D_);
      }
      Element* const to = Elements<Element>(y) + (begin * H_ + h) * D_;
      if (M_ == 1) {
        const int64_t seen = FirstSeen(first);
        Attend(first + 1 - seen, keys + seen * D_, keys + seen * D_ + to_values, scratch, to);
      } else {
        AttendTile(first, m, keys, keys + to_values, scratch, to);
      }
    });
    for (int64_t r = 0; r < R_; ++r) {
      if (at(r).position < T_) continue;
      std::fill_n(Elements<Element>(y) + r * H_ * D_, H_ * D_, Element(0.0F));
    }
    return absl::OkStatus();
  }

 private:
  // Returns the scratch of one thread: a query, its result and the score of each position; or those
  // of a tile of queries, which are also transposed, with the scores of a tile of keys.
  int64_t SlotFloats() const {
    return M_ == 1 ? 2 * D_ + T_ : 3 * M_ * D_ + kPositionTile * M_ + 3 * M_;
  }

  // The cache of a sequence.
  int64_t SequenceFloats() const { return 2 * G_ * T_ * D_; }

  const Element* Part(const Tensor& qkv, int64_t r, int64_t part) const {
    return Elements<Element>(qkv) + (r * (H_ + 2 * G_) + part) * D_;
  }

  // Computes to = scale * from, rotated to the position.
  void Load(int64_t position, float scale, const Element* from, float* to) const {
    if (rotary_ != nullptr) {
      rotary_->Turn(position, scale, from, to);
    } else {
      for (int64_t d = 0; d < D_; ++d) to[d] = scale * from[d];
    }
  }

  // Returns the first position that one sees.
  int64_t FirstSeen(int64_t position) const {
    return W_ == 0 ? 0 : std::max<int64_t>(0, position - W_ + 1);
  }

  // Attends to the n positions from the given keys and values on. `scratch` begins with the query.
  void Attend(int64_t n, const float* keys, const float* values, float* scratch, Element* y) const {
    const float* const query = scratch;
    float* const sum = scratch + D_;
    float* const scores = sum + D_;
    for (int64_t u = 0; u < n; ++u) {
      const float* const key = keys + u * D_;
      scores[u] = LaneSum(D_, [&](int64_t d) { return query[d] * key[d]; });
    }
    const ScoreCap cap = cap_;
    for (int64_t u = 0; cap && u < n; ++u) scores[u] = cap(scores[u]);
    const float largest = *std::max_element(scores, scores + n);
    for (int64_t u = 0; u < n; ++u) scores[u] = SoftmaxWeight(scores[u] - largest);
    const float share = 1.0F / LaneSum(n, [&](int64_t u) { return scores[u]; });
    std::fill_n(sum, D_, 0.0F);
    for (int64_t u = 0; u < n; ++u) {
      const float* const value = values + u * D_;
      const float weight = scores[u];
      for (int64_t d = 0; d < D_; ++d) sum[d] += weight * value[d];
    }
    for (int64_t d = 0; d < D_; ++d) y[d] = sum[d] * share;
  }

  // Computes m queries from position `first` on, each over those that it sees; each
  // produces a row of y. `scratch` begins with the queries. Tiles of keys begin at the same
  // positions in every call, and sums are in their order, so that a query's bits do not depend on
  // the others.
  void AttendTile(int64_t first, int64_t m, const float* keys, const float* values, float* scratch,
                  Element* y) const {
    const float* const queries = scratch;
    float* const transposed = scratch + M_ * D_;
    float* const sums = transposed + M_ * D_;
    float* const scores = sums + M_ * D_;  // (keys, queries)
    float* const largest = scores + kPositionTile * M_;
    const SoftmaxSums softmax = {largest, largest + M_, largest + 2 * M_};
    Transpose(queries, D_, m, D_, transposed, M_);
    std::fill_n(softmax.largest, m, kLowestScore);
    std::fill_n(softmax.total, m, 0.0F);
    const int64_t first_tile = FirstSeen(first) / kPositionTile * kPositionTile;
    for (int64_t begin = first_tile; begin < first + m; begin += kPositionTile) {
      const int64_t n = std::min(kPositionTile, first + m - begin);
      const bool accumulate = begin > first_tile;
      const SeenKeys seen(begin, n, first, m, [&](int64_t c) { return FirstSeen(first + c); });
      seen.ForEachKeyBlock([&](int64_t r, int64_t count, SeenKeys::Range columns) {
        TileProduct(count, columns.end - columns.begin, D_, {keys + (begin + r) * D_, D_, 1},
                    {transposed + columns.begin, M_}, /*accumulate=*/false,
                    scores + r * M_ + columns.begin, M_);
      });
      CapScores(cap_, seen, scores, M_);
      seen.Hide(scores, M_);
      OnlineSoftmax(m, seen, scores, M_, softmax);
      for (int64_t c = 0; c < m; ++c) {
        float* const sum = sums + c * D_;
        for (int64_t d = 0; accumulate && d < D_; ++d) sum[d] *= softmax.correction[c];
      }
      seen.ForEachQueryBlock([&](int64_t c, int64_t count, SeenKeys::Range own) {
        if (!own.empty()) {
          TileProduct(count, D_, own.end - own.begin, {scores + own.begin * M_ + c, 1, M_},
                      {values + (begin + own.begin) * D_, D_}, accumulate, sums + c * D_, D_);
        } else if (!accumulate) {
          std::fill_n(sums + c * D_, count * D_, 0.0F);
        }
      });
    }
    for (int64_t c = 0; c < m; ++c) {
      const float share = 1.0F / softmax.total[c];
      for (int64_t d = 0; d < D_; ++d) y[c * H_ * D_ + d] = sums[c * D_ + d] * share;
    }
  }

  const int64_t R_, T_, H_, G_, D_, sequences_;
  const bool rows_are_sequences_;
  const int slots_;
  const int64_t W_;
  const float scale_;
  const ScoreCap cap_;
  const int64_t M_;  // queries of a tile
  const int64_t query_tiles_;
  std::shared_ptr<const Rotary> rotary_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCpu(const CachedAttentionShape& shape,
                                                               Device& device) {
  RETURN_IF_ERROR(CheckCachedAttention(shape, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<CachedAttentionOp> {
    return std::make_unique<CpuCachedAttention<T>>(shape, AsCpu(device.stream()).threads());
  });
}

}  // namespace stagecoach::kernels
