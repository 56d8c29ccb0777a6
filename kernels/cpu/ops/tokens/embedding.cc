#include "kernels/ops/embedding.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kRowTile = 16;
// The number of columns of a gradient that one tile sums for all ids, in their order, which no
// other tile changes.
constexpr int64_t kColumnTile = 128;
// Large enough for memset to bypass the cache: 154 MB in 2.1 ms rather than 4.7.
constexpr int64_t kZeroTile = 1 << 24;

template <typename From, typename To>
void AddTo(const From* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] + from[i];
}

template <typename From, typename To>
void AddScaled(const From* from, float scale, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = to[i] + scale * from[i];
}

// Names of extents are those of kernels/ops/embedding.h.
template <typename T>
class CpuEmbedding final : public EmbeddingOp {
 public:
  explicit CpuEmbedding(const EmbeddingShape& shape)
      : R_(shape.rows),
        T_(shape.positions),
        V_(shape.vocabulary),
        C_(shape.features),
        has_positions_(shape.has_positions),
        sequence_(shape.sequence),
        scale_(T(shape.scale)),
        W_(shape.all_ids),
        first_(shape.first),
        row_tiles_(R_ * T_, kRowTile),
        column_tiles_(C_, kColumnTile),
        zero_tiles_(V_ * C_, kZeroTile) {}

  int64_t workspace_bytes() const override { return 0; }

  absl::Status Forward(Stream& stream, const Tensor& ids, const Tensor& tokens,
                       const Tensor& positions, const CachedRow* rows, const Tensor& y) override {
    AsCpu(stream).ParallelFor(row_tiles_.count, [&](int tile, int) {
      const int64_t begin = row_tiles_.begin(tile);
      for (int64_t n = begin; n < begin + row_tiles_.length(tile); ++n) {
        T* const to = Elements<T>(y) + n * C_;
        const int32_t id = ids.i32()[n];
        if (IsNowhere(id)) {
          std::fill_n(to, C_, T(std::numeric_limits<float>::quiet_NaN()));
          continue;
        }
        if (IsHere(id)) {
          Scale(Elements<T>(tokens) + (id - first_) * C_, to);
        } else {
          std::fill_n(to, C_, T(0.0F));
        }
        if (has_positions_ && first_ == 0) AddPosition(n, positions, rows, to);
        if (W_ == 0) continue;
        for (int64_t c = 0; c < C_; ++c) to[c] = to[c] + 0.0F;  // no zero is negative
      }
    });
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& ids, const Tensor& dy,
                              const Tensor& dtokens, const Tensor& dpositions, bool accumulate,
                              std::byte* /*workspace*/) override {
    CpuStream& cpu = AsCpu(stream);
    if (!accumulate) {
      cpu.ParallelFor(zero_tiles_.count, [&](int tile, int) {
        std::memset(dtokens.f32() + zero_tiles_.begin(tile), 0,
                    static_cast<size_t>(zero_tiles_.length(tile)) * sizeof(float));
      });
      if (has_positions_) std::fill_n(dpositions.f32(), T_ * C_, 0.0F);
    }
    cpu.ParallelFor(column_tiles_.count, [&](int tile, int) {
      const int64_t c = column_tiles_.begin(tile);
      const int64_t columns = column_tiles_.length(tile);
      for (int64_t n = 0; n < R_ * T_; ++n) {
        const T* const from = Elements<T>(dy) + n * C_ + c;
        const int32_t id = ids.i32()[n];
        if (IsHere(id)) {
          AddScaled(from, scale_, columns, dtokens.f32() + (id - first_) * C_ + c);
        }
        if (has_positions_) AddTo(from, columns, dpositions.f32() + n % T_ * C_ + c);
      }
    });
    return absl::OkStatus();
  }

 private:
  bool IsHere(int32_t id) const { return id >= first_ && id - first_ < V_; }
  // Of no block; the first one says so.
  bool IsNowhere(int32_t id) const { return first_ == 0 && (id < 0 || id >= std::max(V_, W_)); }

  void Scale(const T* from, T* to) const {
    if (scale_ == 1.0F) {
      std::memcpy(to, from, static_cast<size_t>(C_) * sizeof(T));
      return;
    }
    for (int64_t c = 0; c < C_; ++c) to[c] = scale_ * from[c];
  }

  void AddPosition(int64_t n, const Tensor& positions, const CachedRow* rows, T* to) const {
    const int64_t position = sequence_ > 0 ? rows[n].position : n % T_;
    if (sequence_ > 0 && position >= sequence_) return;
    AddTo(Elements<T>(positions) + position * C_, C_, to);
  }

  const int64_t R_, T_, V_, C_;
  const bool has_positions_;
  const int64_t sequence_;
  const float scale_;
  const int64_t W_, first_;  // of a block
  const Tiling row_tiles_, column_tiles_, zero_tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCpu(const EmbeddingShape& shape,
                                                         Device& device) {
  if (shape.sequence < 0 ||
      (shape.sequence > 0 && (shape.positions != 1 || !shape.has_positions))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "embedding: rows of a sequence are of one id, and have positions: ", shape.sequence,
        " positions of a sequence, ", shape.positions, " of a row"));
  }
  if (!shape.has_scale()) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding: the scale must be above 0, not ", shape.scale));
  }
  if (!IsExtent(shape.rows) || !IsExtent(shape.positions) ||
      !IsExtent(shape.rows * shape.positions) || !IsExtent(shape.vocabulary) ||
      !IsExtent(shape.features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding: extents, and ids in all, must be 1 to ", kMaxExtent, ": ",
                     shape.rows, " rows, ", shape.positions, " positions, ", shape.vocabulary,
                     " words, ", shape.features, " features"));
  }
  if (!shape.has_block() || shape.all_ids > kMaxExtent) {
    return absl::InvalidArgumentError(absl::StrCat(
        "embedding: a block of ", shape.vocabulary, " ids from ", shape.first,
        " on must be among all ", shape.all_ids, " ids, which are at most ", kMaxExtent));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<EmbeddingOp> {
    return std::make_unique<CpuEmbedding<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
