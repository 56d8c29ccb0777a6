#include "kernels/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/ops/attention/attention_parts.h"
#include "kernels/cpu/ops/attention/rotary.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/ops/tile_product.h"
#include "kernels/cpu/products/lane_sum.h"

namespace stagecoach::kernels {
namespace {

// Rows of a head at consecutive positions.
template <typename Element>
struct HeadRows {
  Element* data;
  int64_t stride;
  HeadRows from(int64_t position) const { return {data + position * stride, stride}; }
  Element* row(int64_t position) const { return data + position * stride; }
};

// Scores are kept with a row for each key and a column for each query of a tile. That way maxima
// and sums over keys are over whole rows, all products read keys, values and gradients where they
// are, and only queries are transposed.
//
// Names of extents are those of kernels/ops/attention.h. Element is the type of activations.
// Operands that are not float are loaded into float tiles, and all sums are float.
template <typename Element>
class CpuAttention final : public AttentionOp {
  using Rows = HeadRows<Element>;
  using FloatRows = HeadRows<float>;
  static constexpr bool kIsLoaded = !kIsFloat<Element>;

 public:
  CpuAttention(const AttentionShape& shape, int slots)
      : B_(shape.samples),
        T_(shape.positions),
        H_(shape.heads),
        G_(shape.kv_heads),
        D_(shape.head_size),
        W_(shape.window),
        has_documents_(shape.has_documents),
        slots_(slots),
        scale_(ScoreScale(shape.scale, D_)),
        cap_(shape.score_cap),
        tiles_(T_, kPositionTile),
        M_(tiles_.size) {
    if (shape.rotary_base > 0.0F) {
      rotary_.emplace(T_, D_, shape.rotary_base, shape.rotary_scaling, shape.rotary_size);
    }
  }

  int64_t workspace_bytes() const override {
    return slots_ * SlotFloats() * SizeOf(DType::kFloat32);
  }

  absl::Status Forward(Stream& stream, const Tensor& qkv, const Tensor& documents,
                       const Tensor& statistics, const Tensor& y, std::byte* workspace) override {
    AsCpu(stream).ParallelFor(static_cast<int>(B_ * H_ * tiles_.count), [&](int task, int slot) {
      // Heads are computed one after the other, while their keys and values are in a cache; within
      // each, the last tile, which has the most keys, comes first.
      const int tile = tiles_.count - 1 - task % tiles_.count;
      const int64_t b = task / tiles_.count / H_;
      const int64_t h = task / tiles_.count % H_;
      ForwardTile(tile, SeenBy(documents, b), Query(qkv, b, h), Key(qkv, b, h), Value(qkv, b, h),
                  Output(y, b, h), statistics.f32() + (b * H_ + h) * T_, Slot(workspace, slot));
    });
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& qkv,
                             const Tensor& documents, const Tensor& y, const Tensor& statistics,
                             const Tensor& dqkv, std::byte* workspace) override {
    // Gradients of a key and a value are summed over the heads of a group and over queries: a group
    // is one task.
    AsCpu(stream).ParallelFor(static_cast<int>(B_ * G_), [&](int task, int slot) {
      const int64_t b = task / G_;
      const int64_t first_head = task % G_ * GroupSize();
      const Scratch scratch = Slot(workspace, slot);
      const Rows dk = Key(dqkv, b, first_head);
      const Rows dv = Value(dqkv, b, first_head);
      FloatRows dk_sums = {scratch.dk, D_}, dv_sums = {scratch.dv, D_};
      if constexpr (!kIsLoaded) {
        dk_sums = dk;
        dv_sums = dv;
      }
      for (int64_t t = 0; t < T_; ++t) {
        std::fill_n(dk_sums.row(t), D_, 0.0F);
        std::fill_n(dv_sums.row(t), D_, 0.0F);
      }
      for (int64_t h = first_head; h < first_head + GroupSize(); ++h) {
        const BackwardHead head = {SeenBy(documents, b),
                                   Query(qkv, b, h),
                                   Key(qkv, b, h),
                                   Value(qkv, b, h),
                                   Output(y, b, h),
                                   Output(dy, b, h),
                                   Query(dqkv, b, h),
                                   dk_sums,
                                   dv_sums,
                                   statistics.f32() + (b * H_ + h) * T_};
        for (int tile = 0; tile < tiles_.count; ++tile) BackwardTile(tile, head, scratch);
      }
      for (int64_t t = 0; t < T_; ++t) {
        if (rotary_) {
          rotary_->TurnBack(t, 1.0F, dk_sums.row(t), dk.row(t));
        } else if constexpr (kIsLoaded) {
          Convert(dk_sums.row(t), D_, dk.row(t));
        }
        if constexpr (kIsLoaded) Convert(dv_sums.row(t), D_, dv.row(t));
      }
    });
    return absl::OkStatus();
  }

 private:
  // Scratch of one thread, for tiles of M queries and as many keys; all rows are contiguous.
  struct Scratch {
    float* queries;             // (M, D), rotated and scaled
    float* queries_transposed;  // (D, M)
    float* dy_transposed;       // (D, M)
    float* keys;                // (M, D), rotated
    // Used if activations are not float: (M, D) each, and (T, D) each.
    float* values;
    float* dy;
    float* dk;
    float* dv;
    float* scores;     // (M keys, M queries), then the softmax's results
    float* gradients;  // of the scores
    float* sums;       // (M, D): sums of a query, before scaling
    // (M) each
    float* largest;
    float* correction;
    float* total;
    float* dy_times_y;
  };

  // What positions of a sample see.
  struct Sight {
    // Returns the first position.
    int64_t operator()(int64_t t) const {
      const int64_t first = documents == nullptr ? 0 : documents[t];
      return window == 0 ? first : std::max(first, t - window + 1);
    }
    const int32_t* documents;
    int64_t window;
  };
  Sight SeenBy(const Tensor& documents, int64_t b) const {
    return {has_documents_ ? documents.i32() + b * T_ : nullptr, W_};
  }

  struct BackwardHead {
    Sight first_seen;
    Rows q, k, v, y, dy, dq;
    FloatRows dk, dv;
    const float* statistics;
  };

  int64_t GroupSize() const { return H_ / G_; }
  int64_t SlotFloats() const {
    const int64_t loaded = kIsLoaded ? 2 * M_ * D_ + 2 * T_ * D_ : 0;
    return 5 * M_ * D_ + 2 * M_ * M_ + 4 * M_ + loaded;
  }

  Scratch Slot(std::byte* workspace, int slot) const {
    float* next = reinterpret_cast<float*>(workspace) + slot * SlotFloats();
    const auto take = [&next](int64_t floats) { return std::exchange(next, next + floats); };
    Scratch scratch = {};
    for (float** area : {&scratch.queries, &scratch.queries_transposed, &scratch.dy_transposed,
                         &scratch.keys, &scratch.sums}) {
      *area = take(M_ * D_);
    }
    for (float** area : {&scratch.scores, &scratch.gradients}) *area = take(M_ * M_);
    for (float** area :
         {&scratch.largest, &scratch.correction, &scratch.total, &scratch.dy_times_y}) {
      *area = take(M_);
    }
    if constexpr (kIsLoaded) {
      for (float** area : {&scratch.values, &scratch.dy}) *area = take(M_ * D_);
      for (float** area : {&scratch.dk, &scratch.dv}) *area = take(T_ * D_);
    }
    return scratch;
  }

  Rows RowsOf(const Tensor& qkv, int64_t b, int64_t column) const {
    const int64_t width = (H_ + 2 * G_) * D_;
    return {Elements<Element>(qkv) + b * T_ * width + column * D_, width};
  }
  Rows Query(const Tensor& qkv, int64_t b, int64_t h) const { return RowsOf(qkv, b, h); }
  Rows Key(const Tensor& qkv, int64_t b, int64_t h) const {
    return RowsOf(qkv, b, H_ + h / GroupSize());
  }
  Rows Value(const Tensor& qkv, int64_t b, int64_t h) const {
    return RowsOf(qkv, b, H_ + G_ + h / GroupSize());
  }
  Rows Output(const Tensor& y, int64_t b, int64_t h) const {
    return {Elements<Element>(y) + b * T_ * H_ * D_ + h * D_, H_ * D_};
  }

  void LoadQueries(int tile, const Rows& q, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    for (int64_t c = 0; c < m; ++c) {
      const Element* const from = q.row(begin + c);
      float* const to = scratch.queries + c * D_;
      if (rotary_) {
        rotary_->Turn(begin + c, scale_, from, to);
      } else {
        for (int64_t d = 0; d < D_; ++d) to[d] = scale_ * from[d];
      }
    }
    Transpose(scratch.queries, D_, m, D_, scratch.queries_transposed, M_);
  }

  // Returns the rows of a tile: where they are, or loaded into `to`.
  FloatRows Load(int tile, const Rows& rows, float* to) const {
    const int64_t begin = tiles_.begin(tile);
    if constexpr (!kIsLoaded) return rows.from(begin);
    for (int64_t n = 0; n < tiles_.length(tile); ++n) Convert(rows.row(begin + n), D_, to + n * D_);
    return {to, D_};
  }

  FloatRows LoadKeys(int tile, const Rows& k, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    if (!rotary_) return Load(tile, k, scratch.keys);
    for (int64_t n = 0; n < tiles_.length(tile); ++n) {
      rotary_->Turn(begin + n, 1.0F, k.row(begin + n), scratch.keys + n * D_);
    }
    return {scratch.keys, D_};
  }

  // Returns the first tile of keys that some query of a tile sees.
  int FirstTile(int tile, const Sight& first_seen) const {
    return static_cast<int>(first_seen(tiles_.begin(tile)) / M_);
  }
  // Returns which keys of tile j they see.
  SeenKeys Seen(int j, int tile, const Sight& first_seen) const {
    const int64_t begin = tiles_.begin(tile);
    return {tiles_.begin(j), tiles_.length(j), begin, tiles_.length(tile),
            [&](int64_t c) { return first_seen(begin + c); }};
  }

  // Computes to (keys, queries) = rows times transposed queries, or gradients.
  void TimesQueries(const SeenKeys& seen, const FloatRows& rows, const float* transposed,
                    float* to) const {
    seen.ForEachKeyBlock([&](int64_t r, int64_t count, SeenKeys::Range queries) {
      TileProduct(count, queries.end - queries.begin, D_, {rows.row(r), rows.stride, 1},
                  {transposed + queries.begin, M_}, /*accumulate=*/false,
                  to + r * M_ + queries.begin, M_);
    });
  }

  // Computes to (queries, D) (+)= scores^T times rows (keys, D).
  void SumOverKeys(const SeenKeys& seen, const float* scores, const FloatRows& rows,
                   bool accumulate, float* to) const {
    seen.ForEachQueryBlock([&](int64_t c, int64_t count, SeenKeys::Range keys) {
      if (!keys.empty()) {
        TileProduct(count, D_, keys.end - keys.begin, {scores + keys.begin * M_ + c, 1, M_},
                    {rows.row(keys.begin), rows.stride}, accumulate, to + c * D_, D_);
      } else if (!accumulate) {
        std::fill_n(to + c * D_, count * D_, 0.0F);
      }
    });
  }

  // Computes to (keys, D) += scores times rows (queries, D).
  void AddOverQueries(const SeenKeys& seen, const float* scores, const FloatRows& rows,
                      const FloatRows& to) const {
    seen.ForEachKeyBlock([&](int64_t r, int64_t count, SeenKeys::Range queries) {
      TileProduct(count, D_, queries.end - queries.begin, {scores + r * M_ + queries.begin, M_, 1},
                  {rows.row(queries.begin), rows.stride}, /*accumulate=*/true, to.row(r),
                  to.stride);
    });
  }

  // Computes scores; those of keys that a query does not see become kNoScore.
  void Scores(const SeenKeys& seen, const FloatRows& keys, const Scratch& scratch) const {
    TimesQueries(seen, keys, scratch.queries_transposed, scratch.scores);
    CapScores(cap_, seen, scratch.scores, M_);
    seen.Hide(scratch.scores, M_);
  }

  void ForwardTile(int tile, const Sight& first_seen, const Rows& q, const Rows& k, const Rows& v,
                   const Rows& y, float* statistics, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    LoadQueries(tile, q, scratch);
    std::fill_n(scratch.largest, m, kLowestScore);
    std::fill_n(scratch.total, m, 0.0F);
    const int first_tile = FirstTile(tile, first_seen);
    for (int j = first_tile; j <= tile; ++j) {
      const SeenKeys seen = Seen(j, tile, first_seen);
      Scores(seen, LoadKeys(j, k, scratch), scratch);
      OnlineSoftmax(m, seen, scratch.scores, M_,
                    {scratch.largest, scratch.correction, scratch.total});
      if (j > first_tile) {
        for (int64_t c = 0; c < m; ++c) {
          float* const sum = scratch.sums + c * D_;
          for (int64_t d = 0; d < D_; ++d) sum[d] *= scratch.correction[c];
        }
      }
      SumOverKeys(seen, scratch.scores, Load(j, v, scratch.values), j > first_tile, scratch.sums);
    }
    for (int64_t c = 0; c < m; ++c) {
      const float share = 1.0F / scratch.total[c];
      const float* const sum = scratch.sums + c * D_;
      Element* const row = y.row(begin + c);
      for (int64_t d = 0; d < D_; ++d) row[d] = sum[d] * share;
      statistics[begin + c] = scratch.largest[c] + std::log(scratch.total[c]);
    }
  }

  // Computes dy_t y_t of a tile, and transposes dy.
  void LoadOutputs(int tile, const BackwardHead& head, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    for (int64_t c = 0; c < m; ++c) {
      const Element* const dy = head.dy.row(begin + c);
      const Element* const y = head.y.row(begin + c);
      scratch.dy_times_y[c] = LaneSum(D_, [&](int64_t d) { return dy[d] * y[d]; });
    }
    Transpose(head.dy.row(begin), head.dy.stride, m, D_, scratch.dy_transposed, M_);
  }

  // Turns scores into weights, and the gradients of weights into those of scores.
  // slope(score) is the derivative of what capped it.
  template <typename Slope>
  void Weigh(const SeenKeys& seen, const float* statistics, const Scratch& scratch,
             Slope slope) const {
    const float* const dy_times_y = scratch.dy_times_y;
    seen.ForEachKey([&](int64_t r, SeenKeys::Range queries) {
      float* __restrict const weight = scratch.scores + r * M_;
      float* __restrict const gradient = scratch.gradients + r * M_;
      for (int64_t c = queries.begin; c < queries.end; ++c) {
        const float of_score = slope(weight[c]);
        weight[c] = SoftmaxWeight(weight[c] - statistics[c]);
        gradient[c] = weight[c] * (gradient[c] - dy_times_y[c]) * of_score;
      }
    });
  }

  void BackwardTile(int tile, const BackwardHead& head, const Scratch& scratch) const {
    const int64_t begin = tiles_.begin(tile);
    const int64_t m = tiles_.length(tile);
    const float* const statistics = head.statistics + begin;
    LoadQueries(tile, head.q, scratch);
    LoadOutputs(tile, head, scratch);
    const FloatRows dy = Load(tile, head.dy, scratch.dy);
    const int first_tile = FirstTile(tile, head.first_seen);
    for (int j = first_tile; j <= tile; ++j) {
      const int64_t first_key = tiles_.begin(j);
      const SeenKeys seen = Seen(j, tile, head.first_seen);
      const FloatRows keys = LoadKeys(j, head.k, scratch);
      Scores(seen, keys, scratch);
      TimesQueries(seen, Load(j, head.v, scratch.values), scratch.dy_transposed, scratch.gradients);
      if (cap_) {
        Weigh(seen, statistics, scratch, [cap = cap_](float score) { return cap.Slope(score); });
      } else {
        Weigh(seen, statistics, scratch, [](float) { return 1.0F; });
      }
      AddOverQueries(seen, scratch.scores, dy, head.dv.from(first_key));
      AddOverQueries(seen, scratch.gradients, {scratch.queries, D_}, head.dk.from(first_key));
      SumOverKeys(seen, scratch.gradients, keys, j > first_tile, scratch.sums);
    }
    for (int64_t c = 0; c < m; ++c) {
      const float* const sum = scratch.sums + c * D_;
      Element* const dq = head.dq.row(begin + c);
      if (rotary_) {
        rotary_->TurnBack(begin + c, scale_, sum, dq);
      } else {
        for (int64_t d = 0; d < D_; ++d) dq[d] = scale_ * sum[d];
      }
    }
  }

  const int64_t B_, T_, H_, G_, D_, W_;
  const bool has_documents_;
  const int slots_;
  const float scale_;
  const ScoreCap cap_;
  const Tiling tiles_;
  const int64_t M_;  // queries, and keys, of a tile
  std::optional<Rotary> rotary_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCpu(const AttentionShape& shape,
                                                         Device& device) {
  RETURN_IF_ERROR(CheckAttention(shape, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<AttentionOp> {
    return std::make_unique<CpuAttention<T>>(shape, AsCpu(device.stream()).threads());
  });
}

}  // namespace stagecoach::kernels
