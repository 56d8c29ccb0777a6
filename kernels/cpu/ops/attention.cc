#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/lane_sum.h"
#include "kernels/cpu/ops/rotary.h"
#include "kernels/cpu/ops/tile_product.h"
#include "kernels/cpu/ops/transpose.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

// Queries of a tile, and keys.
constexpr int64_t kPositionTile = 64;
// On the diagonal, where a query sees a part of the keys, scores are left out in blocks of so many
// keys and queries.
constexpr int64_t kDiagonalBlock = 16;
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

// Rows of a head, at consecutive positions.
struct HeadRows {
  float* data;
  int64_t stride;
  HeadRows from(int64_t position) const { return {data + position * stride, stride}; }
  float* row(int64_t position) const { return data + position * stride; }
};

// e^x, which is 0 far below 0.
inline float Weight(float x) { return x < -87.0F ? 0.0F : FastExp(x); }

// Scores are kept with a row for each key and a column for each query of a tile. That way maxima
// and sums over keys are those of whole rows, all products read keys, values and gradients where
// they are, and only queries are transposed.
//
// Names of extents as in kernels/ops/attention.h.
class CpuAttention final : public AttentionOp {
 public:
  CpuAttention(const AttentionShape& shape, int slots)
      : B_(shape.samples),
        T_(shape.positions),
        H_(shape.heads),
        G_(shape.kv_heads),
        D_(shape.head_size),
        slots_(slots),
        scale_(1.0F / std::sqrt(static_cast<float>(D_))),
        tiles_(T_, kPositionTile),
        M_(tiles_.size) {
    if (shape.rotary_base > 0.0F) rotary_.emplace(T_, D_, shape.rotary_base);
  }

  int64_t workspace_bytes() const override {
    return slots_ * SlotFloats() * SizeOf(DType::kFloat32);
  }

  absl::Status Forward(Stream& stream, const Tensor& qkv, const Tensor& statistics, const Tensor& y,
                       std::byte* workspace) override {
    AsCpu(stream).ParallelFor(static_cast<int>(B_ * H_ * tiles_.count), [&](int task, int slot) {
      // One head after the other, while its keys and values are in a cache; of each the last tile,
      // which has the most keys, first.
      const int tile = tiles_.count - 1 - task % tiles_.count;
      const int64_t b = task / tiles_.count / H_;
      const int64_t h = task / tiles_.count % H_;
      ForwardTile(tile, Query(qkv, b, h), Key(qkv, b, h), Value(qkv, b, h), Output(y, b, h),
                  statistics.f32() + (b * H_ + h) * T_, Slot(workspace, slot));
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& qkv, const Tensor& y,
                             const Tensor& statistics, const Tensor& dqkv,
                             std::byte* workspace) override {
    // Gradients of a key and a value are summed over the heads of a group and over queries: a group
    // is one task.
    AsCpu(stream).ParallelFor(static_cast<int>(B_ * G_), [&](int task, int slot) {
      const int64_t b = task / G_;
      const int64_t first_head = task % G_ * GroupSize();
      const Scratch scratch = Slot(workspace, slot);
      const HeadRows dk = Key(dqkv, b, first_head);
      const HeadRows dv = Value(dqkv, b, first_head);
      for (int64_t t = 0; t < T_; ++t) {
        std::fill_n(dk.row(t), D_, 0.0F);
        std::fill_n(dv.row(t), D_, 0.0F);
      }
      for (int64_t h = first_head; h < first_head + GroupSize(); ++h) {
        const BackwardHead head = {Query(qkv, b, h),
                                   Key(qkv, b, h),
                                   Value(qkv, b, h),
                                   Output(y, b, h),
                                   Output(dy, b, h),
                                   Query(dqkv, b, h),
                                   dk,
                                   dv,
                                   statistics.f32() + (b * H_ + h) * T_};
        for (int tile = 0; tile < tiles_.count; ++tile) BackwardTile(tile, head, scratch);
      }
      if (!rotary_) return;
      for (int64_t t = 0; t < T_; ++t) rotary_->TurnBack(t, 1.0F, dk.row(t), dk.row(t));
    });
    return absl::OkStatus();
  }

 private:
  // Of one thread. M queries and as many keys in a tile; all rows contiguous.
  struct Scratch {
    float* queries;             // (M, D), turned and scaled
    float* queries_transposed;  // (D, M)
    float* dy_transposed;       // (D, M)
    float* keys;                // (M, D), turned
    float* scores;              // (M keys, M queries), then what the softmax makes of them
    float* gradients;           // of the scores
    float* sums;                // (M, D): of a query, before they are scaled
    // (M) each
    float* largest;
    float* correction;
    float* total;
    float* dy_times_y;
  };

  struct BackwardHead {
    HeadRows q, k, v, y, dy, dq, dk, dv;
    const float* statistics;
  };

  int64_t GroupSize() const { return H_ / G_; }
  int64_t SlotFloats() const { return 5 * M_ * D_ + 2 * M_ * M_ + 4 * M_; }

  Scratch Slot(std::byte* workspace, int slot) const {
    float* next = reinterpret_cast<float*>(workspace) + slot * SlotFloats();
    const auto take = [&next](int64_t floats) { return std::exchange(next, next + floats); };
    Scratch scratch;
    for (float** area : {&scratch.queries, &scratch.queries_transposed, &scratch.dy_transposed,
                         &scratch.keys, &scratch.sums}) {
      *area = take(M_ * D_);
    }
    for (float** area : {&scratch.scores, &scratch.gradients}) *area = take(M_ * M_);
    for (float** area :
         {&scratch.largest, &scratch.correction, &scratch.total, &scratch.dy_times_y}) {
      *area = take(M_);
    }
    return scratch;
  }

  HeadRows RowsOf(const Tensor& qkv, int64_t b, int64_t column) const {
    const int64_t width = (H_ + 2 * G_) * D_;
    return {qkv.f32() + b * T_ * width + column * D_, width};
  }
  HeadRows Query(const Tensor& qkv, int64_t b, int64_t h) const { return RowsOf(qkv, b, h); }
  HeadRows Key(const Tensor& qkv, int64_t b, int64_t h) const {
    return RowsOf(qkv, b, H_ + h / GroupSize());
  }
  HeadRows Value(const Tensor& qkv, int64_t b, int64_t h) const {
    return RowsOf(qkv, b, H_ + G_ + h / GroupSize());
  }
  HeadRows Output(const Tensor& y, int64_t b, int64_t h) const {
    return {y.f32() + b * T_ * H_ * D_ + h * D_, H_ * D_};
  }

  void LoadQueries(int tile, const HeadRows& q, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    for (int64_t c = 0; c < m; ++c) {
      const float* const from = q.row(begin + c);
      float* const to = scratch.queries + c * D_;
      if (rotary_) {
        rotary_->Turn(begin + c, scale_, from, to);
      } else {
        for (int64_t d = 0; d < D_; ++d) to[d] = scale_ * from[d];
      }
    }
    Transpose(scratch.queries, D_, m, D_, scratch.queries_transposed, M_);
  }

  HeadRows LoadKeys(int tile, const HeadRows& k, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    if (!rotary_) return k.from(begin);
    for (int64_t n = 0; n < tiles_.length(tile); ++n) {
      rotary_->Turn(begin + n, 1.0F, k.row(begin + n), scratch.keys + n * D_);
    }
    return {scratch.keys, D_};
  }

  // to (keys, queries) = rows times transposed queries, or gradients.
  void TimesQueries(int64_t n, int64_t m, bool diagonal, const HeadRows& rows,
                    const float* transposed, float* to) const {
    const int64_t block = diagonal ? kDiagonalBlock : n;
    for (int64_t r = 0; r < n; r += block) {
      const int64_t c = diagonal ? r : 0;
      TileProduct(std::min(block, n - r), m - c, D_, {rows.row(r), rows.stride, 1}, transposed + c,
                  M_, /*accumulate=*/false, to + r * M_ + c, M_);
    }
  }

  // to (queries, D) (+)= scores^T times rows (keys, D).
  void SumOverKeys(int64_t n, int64_t m, bool diagonal, const float* scores, const HeadRows& rows,
                   bool accumulate, float* to) const {
    const int64_t block = diagonal ? kDiagonalBlock : m;
    for (int64_t c = 0; c < m; c += block) {
      const int64_t keys = diagonal ? std::min(c + block, n) : n;
      TileProduct(std::min(block, m - c), D_, keys, {scores + c, 1, M_}, rows.data, rows.stride,
                  accumulate, to + c * D_, D_);
    }
  }

  // to (keys, D) += scores times rows (queries, D).
  void AddOverQueries(int64_t n, int64_t m, bool diagonal, const float* scores,
                      const HeadRows& rows, const HeadRows& to) const {
    const int64_t block = diagonal ? kDiagonalBlock : n;
    for (int64_t r = 0; r < n; r += block) {
      const int64_t c = diagonal ? r : 0;
      TileProduct(std::min(block, n - r), D_, m - c, {scores + r * M_ + c, M_, 1}, rows.row(c),
                  rows.stride, /*accumulate=*/true, to.row(r), to.stride);
    }
  }

  // The first query of a row of scores that was computed.
  static int64_t FirstColumn(bool diagonal, int64_t r) {
    return diagonal ? r / kDiagonalBlock * kDiagonalBlock : 0;
  }

  // Scores of one tile of keys: what a query does not see is kNoScore.
  void Scores(int64_t n, int64_t m, bool diagonal, const HeadRows& keys,
              const Scratch& scratch) const {
    TimesQueries(n, m, diagonal, keys, scratch.queries_transposed, scratch.scores);
    if (!diagonal) return;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t first = FirstColumn(diagonal, r);
      std::fill(scratch.scores + r * M_ + first, scratch.scores + r * M_ + r, kNoScore);
    }
  }

  // Online softmax (Milakov & Gimelshein 2018): scores become weights relative to the largest of
  // this tile and those before, `total` their sum, `correction` what makes up for another largest.
  void Softmax(int64_t n, int64_t m, bool diagonal, const Scratch& scratch) const {
    float* __restrict const largest = scratch.largest;
    float* __restrict const correction = scratch.correction;
    float* __restrict const total = scratch.total;
    std::copy_n(largest, m, correction);
    for (int64_t r = 0; r < n; ++r) {
      const float* __restrict const row = scratch.scores + r * M_;
      for (int64_t c = FirstColumn(diagonal, r); c < m; ++c) {
        largest[c] = largest[c] < row[c] ? row[c] : largest[c];
      }
    }
    for (int64_t c = 0; c < m; ++c) {
      correction[c] = Weight(correction[c] - largest[c]);
      total[c] *= correction[c];
    }
    for (int64_t r = 0; r < n; ++r) {
      float* __restrict const row = scratch.scores + r * M_;
      for (int64_t c = FirstColumn(diagonal, r); c < m; ++c) {
        row[c] = Weight(row[c] - largest[c]);
        total[c] += row[c];
      }
    }
  }

  void ForwardTile(int tile, const HeadRows& q, const HeadRows& k, const HeadRows& v,
                   const HeadRows& y, float* statistics, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    LoadQueries(tile, q, scratch);
    std::fill_n(scratch.largest, m, kNoScore);
    std::fill_n(scratch.total, m, 0.0F);
    for (int j = 0; j <= tile; ++j) {
      const int64_t n = tiles_.length(j);
      const bool diagonal = j == tile;
      Scores(n, m, diagonal, LoadKeys(j, k, scratch), scratch);
      Softmax(n, m, diagonal, scratch);
      if (j > 0) {
        for (int64_t c = 0; c < m; ++c) {
          float* const sum = scratch.sums + c * D_;
          for (int64_t d = 0; d < D_; ++d) sum[d] *= scratch.correction[c];
        }
      }
      SumOverKeys(n, m, diagonal, scratch.scores, v.from(tiles_.begin(j)), j > 0, scratch.sums);
    }
    for (int64_t c = 0; c < m; ++c) {
      const float share = 1.0F / scratch.total[c];
      const float* const sum = scratch.sums + c * D_;
      float* const row = y.row(begin + c);
      for (int64_t d = 0; d < D_; ++d) row[d] = sum[d] * share;
      statistics[begin + c] = scratch.largest[c] + std::log(scratch.total[c]);
    }
  }

  // dy_t y_t of a tile, and dy transposed.
  void LoadOutputs(int tile, const BackwardHead& head, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    for (int64_t c = 0; c < m; ++c) {
      const float* const dy = head.dy.row(begin + c);
      const float* const y = head.y.row(begin + c);
      scratch.dy_times_y[c] = LaneSum(D_, [&](int64_t d) { return dy[d] * y[d]; });
    }
    Transpose(head.dy.row(begin), head.dy.stride, m, D_, scratch.dy_transposed, M_);
  }

  void BackwardTile(int tile, const BackwardHead& head, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    const float* const statistics = head.statistics + begin;
    LoadQueries(tile, head.q, scratch);
    LoadOutputs(tile, head, scratch);
    for (int j = 0; j <= tile; ++j) {
      const int64_t n = tiles_.length(j);
      const int64_t first_key = tiles_.begin(j);
      const bool diagonal = j == tile;
      const HeadRows keys = LoadKeys(j, head.k, scratch);
      Scores(n, m, diagonal, keys, scratch);
      TimesQueries(n, m, diagonal, head.v.from(first_key), scratch.dy_transposed,
                   scratch.gradients);
      for (int64_t r = 0; r < n; ++r) {
        float* __restrict const weight = scratch.scores + r * M_;
        float* __restrict const gradient = scratch.gradients + r * M_;
        for (int64_t c = FirstColumn(diagonal, r); c < m; ++c) {
          weight[c] = Weight(weight[c] - statistics[c]);
          gradient[c] = weight[c] * (gradient[c] - scratch.dy_times_y[c]);
        }
      }
      AddOverQueries(n, m, diagonal, scratch.scores, head.dy.from(begin), head.dv.from(first_key));
      AddOverQueries(n, m, diagonal, scratch.gradients, {scratch.queries, D_},
                     head.dk.from(first_key));
      SumOverKeys(n, m, diagonal, scratch.gradients, keys, j > 0, scratch.sums);
    }
    for (int64_t c = 0; c < m; ++c) {
      const float* const sum = scratch.sums + c * D_;
      float* const dq = head.dq.row(begin + c);
      if (rotary_) {
        rotary_->TurnBack(begin + c, scale_, sum, dq);
      } else {
        for (int64_t d = 0; d < D_; ++d) dq[d] = scale_ * sum[d];
      }
    }
  }

  const int64_t B_, T_, H_, G_, D_;
  const int slots_;
  const float scale_;
  const Tiling tiles_;
  const int64_t M_;  // queries, and keys, of a tile
  std::optional<Rotary> rotary_;
};

// Whether the extents, and their products by which tasks and bytes are counted, are in range.
bool AreAttentionExtents(const AttentionShape& shape) {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  if (!IsExtent(B) || !IsExtent(T) || !IsExtent(shape.heads) || !IsExtent(shape.kv_heads) ||
      !IsExtent(D)) {
    return false;
  }
  const int64_t all_heads = shape.heads + 2 * shape.kv_heads;
  return IsExtent(all_heads) && IsExtent(B * T) && IsExtent(B * T * all_heads) &&
         IsExtent(all_heads * D) && IsExtent(T * D);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCpu(const AttentionShape& shape,
                                                         Device& device) {
  if (!AreAttentionExtents(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: extents, samples x positions x heads and head size x heads or positions must "
        "be 1 to ",
        kMaxExtent, ": ", shape.samples, " samples, ", shape.positions, " positions, ", shape.heads,
        " heads, ", shape.kv_heads, " kv heads, head size ", shape.head_size));
  }
  if (shape.heads % shape.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: ", shape.kv_heads, " kv heads do not divide ", shape.heads, " heads"));
  }
  if (!(shape.rotary_base >= 0.0F) || std::isinf(shape.rotary_base)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: the rotary base must be positive, or 0 for none, not ", shape.rotary_base));
  }
  if (shape.rotary_base > 0.0F && shape.head_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention: with a rotary base the head size must be even, not ", shape.head_size));
  }
  return std::unique_ptr<AttentionOp>(
      std::make_unique<CpuAttention>(shape, AsCpu(device.stream()).threads()));
}

}  // namespace stagecoach::kernels
