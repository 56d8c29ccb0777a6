#include "kernels/ops/head.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/ops/tokens/head_products.h"
#include "kernels/cpu/ops/tokens/head_softmax.h"
#include "kernels/cpu/ops/tokens/independent_head.h"
#include "kernels/cpu/products/matrix_product.h"
#include "kernels/cpu/runtime/first_error.h"

namespace stagecoach::kernels {
namespace {

// The number of rows whose logits are in memory at once. Each tile of rows passes over w, and over
// dw. Measured on 256 rows x 768 x 50257, one core of 116 GFLOP/s: all gradients run at 97, 104.5
// and 106 with tiles of 64, 128 and 256 rows, and their logits take 13, 26 and 51 MB.
constexpr int64_t kHeadRowTile = 128;
static_assert(kHeadRowTile <= kHeadTileGranule);  // no tile may have more than requested
// The number of classes, and of features of dx, that one call of a product handles. Half as many
// classes are no faster; with half as many features dx takes 12 % longer.
constexpr int64_t kClassTile = 576;
constexpr int64_t kFeatureTile = 384;
// Logits are kept with a row for each class and a column for each row of x. That way maxima and
// sums over classes are over whole rows, and all products read w, x and dz where they are; only a
// tile of x is transposed.
//
// Names of extents are those of kernels/ops/head.h; m is the number of rows in a tile. T is the
// type of x, w, dx and of the operands of products, so gradients of logits are rounded to it.
template <typename T>
class CpuHead final : public HeadOp {
 public:
  CpuHead(const HeadShape& shape, int slots)
      : R_(shape.rows),
        F_(shape.features),
        C_(shape.classes),
        P_(shape.positions),
        cap_(shape.logit_cap),
        slots_(slots),
        row_tiles_(R_, kHeadRowTile),
        class_tiles_(C_, kClassTile),
        feature_tiles_(F_, kFeatureTile),
        M_(row_tiles_.length(0)) {}

  absl::Status Prepare() {
    const auto products_of = [&](int64_t m) {
      return HeadProducts::Create(kTypeOf<T>, m, F_, class_tiles_, feature_tiles_, slots_);
    };
    ASSIGN_OR_RETURN(whole_, products_of(M_));
    if (row_tiles_.last_length() < M_) {
      ASSIGN_OR_RETURN(last_, products_of(row_tiles_.last_length()));
    }
    scratchpad_bytes_ = std::max(whole_.scratchpad_bytes(), last_.scratchpad_bytes());
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return ScratchAt(nullptr).bytes; }
  int64_t statistics_bytes() const override {
    return R_ * static_cast<int64_t>(sizeof(RowSoftmax));
  }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                       const LossTerms* terms, const Tensor& logits, const Tensor& result,
                       std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    Total total;
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      const Rows rows = RowsOf(tile, labels, result.empty() ? nullptr : terms);
      const int64_t wanted =
          logits.empty() ? 0 : std::min(rows.m, logits.elements() / C_ - rows.begin);
      LoadRows(rows, x, scratch);
      RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int slot) -> absl::Status {
        RETURN_IF_ERROR(Logits(rows, w, classes, slot, scratch));
        const int64_t c = class_tiles_.begin(classes);
        if (wanted > 0) {
          Transpose(scratch.z + c * rows.m, rows.m, class_tiles_.length(classes), wanted,
                    Elements<T>(logits) + rows.begin * C_ + c, C_);
        }
        if (rows.valid > 0) Softmax(rows, classes, scratch);
        return absl::OkStatus();
      }));
      Combine(rows, scratch, scratch.rows, total);
    }
    if (!result.empty()) Store(total, result);
    return absl::OkStatus();
  }

  absl::Status Choose(Stream& stream, const Tensor& x, const Tensor& w, const HeadChoice& choice,
                      std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    const Rows rows = RowsOf(0, {}, nullptr);
    LoadRows(rows, x, scratch);
    RETURN_IF_ERROR(ForClasses(
        stream, [&](int classes, int slot) { return Logits(rows, w, classes, slot, scratch); }));
    ChooseLargest<T>(scratch.z, rows.m, choice);
    return absl::OkStatus();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                             const LossTerms* terms, const Tensor& result, const Tensor& dx,
                             std::byte* statistics, std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    Total total;
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      const Rows rows = RowsOf(tile, labels, terms);
      RowSoftmax* const softmax = reinterpret_cast<RowSoftmax*>(statistics) + rows.begin;
      RETURN_IF_ERROR(LossOfRows(stream, rows, x, w, scratch, softmax, total));
      if (dx.empty()) continue;
      RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int) {
        LogitGradients(rows.m, softmax, classes, scratch);
        return absl::OkStatus();
      }));
      RETURN_IF_ERROR(InputGradients(stream, rows, w, scratch, dx));
    }
    Store(total, result);
    return absl::OkStatus();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& w,
                              const std::byte* statistics, const Tensor& dw, bool accumulate,
                              std::byte* workspace) override {
    return GradientsOfBlock(stream, x, w, 0, statistics, {}, dw, accumulate, workspace);
  }

  absl::Status Backward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                        const LossTerms* terms, const Tensor& result, const Tensor& dx,
                        const Tensor& dw, bool accumulate, std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    Total total;
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      const Rows rows = RowsOf(tile, labels, terms);
      RETURN_IF_ERROR(LossOfRows(stream, rows, x, w, scratch, scratch.rows, total));
      RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int slot) {
        LogitGradients(rows.m, scratch.rows, classes, scratch);
        return WeightGradients(rows, x, classes, slot, scratch, accumulate || tile > 0, dw);
      }));
      if (!dx.empty()) RETURN_IF_ERROR(InputGradients(stream, rows, w, scratch, dx));
    }
    Store(total, result);
    return absl::OkStatus();
  }

  absl::Status NumbersOfBlock(Stream& stream, const Tensor& x, const Tensor& w,
                              const Tensor& labels, int64_t first, const Tensor& numbers,
                              std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      Rows rows = RowsOf(tile, {}, nullptr);
      rows.labels = labels.i32() + rows.begin;
      rows.valid = rows.m;
      rows.first_class = first;
      std::fill_n(scratch.label_logits, rows.m, 0.0F);
      LoadRows(rows, x, scratch);
      RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int slot) -> absl::Status {
        RETURN_IF_ERROR(Logits(rows, w, classes, slot, scratch));
        Softmax(rows, classes, scratch);
        return absl::OkStatus();
      }));
      for (int64_t r = 0; r < rows.m; ++r) {
        const Joined joined = JoinTiles(r, scratch);
        const auto sum = static_cast<float>(joined.sum);
        const auto store = [&](BlockNumber number, double value) {
          numbers.f32()[static_cast<int64_t>(number) * R_ + rows.begin + r] =
              static_cast<float>(value);
        };
        store(BlockNumber::kMaximum, joined.maximum);
        store(BlockNumber::kSum, sum);
        store(BlockNumber::kSumRest, joined.sum - sum);
        store(BlockNumber::kAtLabel, scratch.label_logits[r]);
        store(BlockNumber::kLargest, static_cast<double>(first + joined.largest));
      }
    }
    return absl::OkStatus();
  }

  absl::Status JoinBlocks(Stream& /*stream*/, const Tensor& numbers, int64_t classes,
                          const Tensor& labels, const LossTerms* terms, const Tensor& result,
                          std::byte* statistics, std::byte* /*workspace*/) override {
    const int64_t blocks = numbers.elements() / (kBlockNumbers * R_);
    Total total;
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      const Rows rows = RowsOf(tile, labels, terms);
      RowSoftmax* const softmax = reinterpret_cast<RowSoftmax*>(statistics) + rows.begin;
      for (int64_t r = 0; r < rows.valid; ++r) {
        const auto at = [&](int64_t block, BlockNumber number) {
          const int64_t array = block * kBlockNumbers + static_cast<int64_t>(number);
          return numbers.f32()[array * R_ + rows.begin + r];
        };
        const Joined joined = Join(blocks, [&](int64_t block) -> Joined {
          return {at(block, BlockNumber::kMaximum),
                  static_cast<int64_t>(at(block, BlockNumber::kLargest)),
                  static_cast<double>(at(block, BlockNumber::kSum)) +
                      static_cast<double>(at(block, BlockNumber::kSumRest))};
        });
        float at_label = 0.0F;
        for (int64_t block = 0; block < blocks; ++block) {
          at_label += at(block, BlockNumber::kAtLabel);
        }
        softmax[r] = SoftmaxOf(rows, r, joined, at_label, classes, total);
      }
      std::fill(softmax + rows.valid, softmax + rows.m, kNoGradient);
    }
    Store(total, result);
    return absl::OkStatus();
  }

  absl::Status GradientsOfBlock(Stream& stream, const Tensor& x, const Tensor& w, int64_t first,
                                const std::byte* statistics, const Tensor& dx, const Tensor& dw,
                                bool accumulate, std::byte* workspace) override {
    const Scratch scratch = ScratchAt(workspace);
    for (int tile = 0; tile < row_tiles_.count; ++tile) {
      const Rows rows = RowsOf(tile, {}, nullptr);
      const auto* const softmax = reinterpret_cast<const RowSoftmax*>(statistics) + rows.begin;
      for (int64_t r = 0; r < rows.m; ++r) {
        scratch.rows[r] = softmax[r];
        if (softmax[r].label < 0) continue;
        // Among the classes of the block; at none if it is of another.
        const int64_t label = softmax[r].label - first;
        scratch.rows[r].label =
            0 <= label && label < C_ ? static_cast<int32_t>(label) : static_cast<int32_t>(C_);
      }
      LoadRows(rows, x, scratch);
      RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int slot) -> absl::Status {
        RETURN_IF_ERROR(Logits(rows, w, classes, slot, scratch));
        Softmax(rows, classes, scratch);
        LogitGradients(rows.m, scratch.rows, classes, scratch);
        if (dw.empty()) return absl::OkStatus();
        return WeightGradients(rows, x, classes, slot, scratch, accumulate || tile > 0, dw);
      }));
      if (!dx.empty()) RETURN_IF_ERROR(InputGradients(stream, rows, w, scratch, dx));
    }
    return absl::OkStatus();
  }

 private:
  struct Scratch {
    float* z;             // (C, M): logits, then their exponentials, then their gradients
    T* gradients;         // the same rounded; z itself if T is float
    float* dx;            // (M, F), before rounding; empty if T is float
    T* x_transposed;      // (F, M)
    float* label_logits;  // (M)
    RowSoftmax* rows;     // (M)
    Partial partial;      // (tiles of classes, M)
    std::byte* library;   // scratchpads of products, one per slot
    int64_t bytes;
  };

  // A tile of rows.
  struct Rows {
    int64_t begin, m;
    const int32_t* labels;    // null if there is no loss
    int64_t valid = 0;        // rows among the m
    float scale = 0.0F;       // of the gradient of a row
    int64_t first_class = 0;  // to which labels are relative
  };

  const HeadProducts& ProductsFor(const Rows& rows) const { return rows.m == M_ ? whole_ : last_; }

  struct Total {
    double loss = 0.0;
    int64_t correct = 0;
  };

  Scratch ScratchAt(std::byte* workspace) const {
    Scratch scratch = {};
    const auto take = [&](auto*& area, int64_t count) {
      using Element = std::remove_pointer_t<std::remove_reference_t<decltype(area)>>;
      constexpr int64_t kAlignment = 64;
      if (workspace != nullptr) area = reinterpret_cast<Element*>(workspace + scratch.bytes);
      const int64_t bytes = count * static_cast<int64_t>(sizeof(Element));
      scratch.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    take(scratch.z, C_ * M_);
    if constexpr (kIsFloat<T>) {
      scratch.gradients = scratch.z;
    } else {
      take(scratch.gradients, C_ * M_);
      take(scratch.dx, F_ * M_);
    }
    take(scratch.x_transposed, F_ * M_);
    take(scratch.label_logits, M_);
    take(scratch.rows, M_);
    take(scratch.partial.maximum, class_tiles_.count * M_);
    take(scratch.partial.largest, class_tiles_.count * M_);
    take(scratch.partial.sum, class_tiles_.count * M_);
    take(scratch.library, slots_ * scratchpad_bytes_);
    return scratch;
  }

  // `terms` is null if labels are empty.
  Rows RowsOf(int tile, const Tensor& labels, const LossTerms* terms) const {
    const int64_t begin = row_tiles_.begin(tile);
    const int64_t m = row_tiles_.length(tile);
    if (terms == nullptr) return {begin, m, nullptr};
    return {begin, m, labels.i32() + begin,
            std::clamp<int64_t>(terms->valid_samples * P_ - begin, 0, m),
            terms->scale / static_cast<float>(P_)};
  }

  // Calls function(tile of classes, slot) for each.
  template <typename Function>
  absl::Status ForClasses(Stream& stream, Function function) const {
    FirstError error;
    AsCpu(stream).ParallelFor(
        class_tiles_.count, [&](int classes, int slot) { error.Update(function(classes, slot)); });
    return error.Take();
  }

  std::byte* Scratchpad(const Scratch& scratch, int slot) const {
    return scratch.library + slot * scratchpad_bytes_;
  }

  void LoadRows(const Rows& rows, const Tensor& x, const Scratch& scratch) const {
    Transpose(Elements<T>(x) + rows.begin * F_, F_, rows.m, F_, scratch.x_transposed, rows.m);
  }

  absl::Status Logits(const Rows& rows, const Tensor& w, int classes, int slot,
                      const Scratch& scratch) const {
    const int64_t c = class_tiles_.begin(classes);
    float* const z = scratch.z + c * rows.m;
    RETURN_IF_ERROR(ProductsFor(rows).z.Run(classes, slot, Elements<T>(w) + c * F_,
                                            scratch.x_transposed, false, z,
                                            Scratchpad(scratch, slot)));
    if (cap_ > 0.0F) {
      const int64_t elements = class_tiles_.length(classes) * rows.m;
      for (int64_t i = 0; i < elements; ++i) z[i] = Capped(z[i], cap_);
    }
    for (int64_t r = 0; r < rows.valid; ++r) {
      const int64_t row = rows.labels[r] - rows.first_class - c;
      if (0 <= row && row < class_tiles_.length(classes)) {
        scratch.label_logits[r] = z[row * rows.m + r];
      }
    }
    return absl::OkStatus();
  }

  Partial PartialOf(int classes, const Scratch& scratch) const {
    const int64_t first = classes * M_;
    return {scratch.partial.maximum + first, scratch.partial.largest + first,
            scratch.partial.sum + first};
  }

  void Softmax(const Rows& rows, int classes, const Scratch& scratch) const {
    const int64_t c = class_tiles_.begin(classes);
    // The slope of a capped logit is computed from the logit.
    const auto exponentials = cap_ > 0.0F ? Exponentials<false> : Exponentials<true>;
    exponentials(scratch.z + c * rows.m, class_tiles_.length(classes), rows.m,
                 static_cast<int32_t>(c), PartialOf(classes, scratch));
  }

  // Computes everything that the gradients of these rows need, and their losses.
  absl::Status LossOfRows(Stream& stream, const Rows& rows, const Tensor& x, const Tensor& w,
                          const Scratch& scratch, RowSoftmax* softmax, Total& total) const {
    LoadRows(rows, x, scratch);
    RETURN_IF_ERROR(ForClasses(stream, [&](int classes, int slot) -> absl::Status {
      RETURN_IF_ERROR(Logits(rows, w, classes, slot, scratch));
      Softmax(rows, classes, scratch);
      return absl::OkStatus();
    }));
    Combine(rows, scratch, softmax, total);
    return absl::OkStatus();
  }

  // The softmax of a row over some classes.
  struct Joined {
    float maximum = -std::numeric_limits<float>::infinity();
    int64_t largest = 0;
    double sum = 0.0;
  };

  // Joins parts of the classes, in order: part(i) is the softmax over each of them.
  template <typename Part>
  static Joined Join(int64_t count, Part part) {
    Joined joined;
    for (int64_t i = 0; i < count; ++i) {
      const Joined own = part(i);
      if (own.maximum <= joined.maximum) continue;
      joined.maximum = own.maximum;
      joined.largest = own.largest;
    }
    for (int64_t i = 0; i < count; ++i) {
      const Joined own = part(i);
      joined.sum += own.sum * std::exp(static_cast<double>(own.maximum - joined.maximum));
    }
    return joined;
  }

  Joined JoinTiles(int64_t r, const Scratch& scratch) const {
    return Join(class_tiles_.count, [&](int64_t classes) -> Joined {
      const Partial partial = PartialOf(static_cast<int>(classes), scratch);
      return {partial.maximum[r], partial.largest[r], partial.sum[r]};
    });
  }

  // Adds the row's loss to the total. `classes`: of which the label is one.
  RowSoftmax SoftmaxOf(const Rows& rows, int64_t r, const Joined& joined, float at_label,
                       int64_t classes, Total& total) const {
    const int32_t label = rows.labels[r];
    if (label == kNoLabel) return kNoGradient;
    const bool is_class = 0 <= label && label < classes;
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    if (!is_class) at_label = kNaN;
    total.loss += std::log(joined.sum) - (static_cast<double>(at_label) - joined.maximum);
    total.correct += joined.largest == label ? 1 : 0;
    // A loss that is NaN or infinite shows in the gradient.
    return {joined.maximum,
            is_class ? static_cast<float>(static_cast<double>(rows.scale) / joined.sum) : kNaN,
            rows.scale * (1.0F + 0.0F * at_label), is_class ? label : 0};
  }

  void Combine(const Rows& rows, const Scratch& scratch, RowSoftmax* softmax, Total& total) const {
    for (int64_t r = 0; r < rows.valid; ++r) {
      softmax[r] = SoftmaxOf(rows, r, JoinTiles(r, scratch), scratch.label_logits[r], C_, total);
    }
    std::fill(softmax + rows.valid, softmax + rows.m, kNoGradient);
  }

  void Store(const Total& total, const Tensor& result) const {
    result.f64()[0] = total.loss / static_cast<double>(P_);
    result.f64()[1] = static_cast<double>(total.correct);
  }

  // Replaces the exponentials of a tile of logits, or capped logits, by the gradients.
  void LogitGradients(int64_t m, const RowSoftmax* softmax, int classes,
                      const Scratch& scratch) const {
    const int64_t c = class_tiles_.begin(classes);
    const int64_t n = class_tiles_.length(classes);
    const Partial partial = PartialOf(classes, scratch);
    float* const z = scratch.z + c * m;
    std::array<float, kHeadRowTile> factors;
    for (int64_t r = 0; r < m; ++r) {
      const RowSoftmax& row = softmax[r];
      factors[static_cast<size_t>(r)] =
          row.label < 0 ? 0.0F : row.factor * std::exp(partial.maximum[r] - row.maximum);
    }
    std::array<float, kHeadRowTile> at_labels;  // what is to be subtracted there
    const auto for_labels = [&](auto work) {
      for (int64_t r = 0; r < m; ++r) {
        const int64_t row = softmax[r].label - c;
        if (softmax[r].label < 0 || row < 0 || row >= n) continue;
        work(z[row * m + r], softmax[r].scale, at_labels[static_cast<size_t>(r)]);
      }
    };
    for_labels([&](float logit, float scale, float& at_label) {
      at_label = cap_ > 0.0F ? scale * TanhDerivative(logit / cap_) : scale;
    });
    for (int64_t i = 0; i < n; ++i) {
      float* const row = z + i * m;
      if (cap_ > 0.0F) {
        for (int64_t r = 0; r < m; ++r) {
          row[r] = FastExp(row[r] - partial.maximum[r]) * TanhDerivative(row[r] / cap_);
        }
      }
      for (int64_t r = 0; r < m; ++r) {
        // Exponentials of a row without a gradient may be NaN.
        const float factor = factors[static_cast<size_t>(r)];
        row[r] = factor == 0.0F ? 0.0F : row[r] * factor;
      }
    }
    for_labels([](float& gradient, float, float at_label) { gradient -= at_label; });
    if constexpr (!kIsFloat<T>) Convert(z, n * m, scratch.gradients + c * m);
  }

  absl::Status WeightGradients(const Rows& rows, const Tensor& x, int classes, int slot,
                               const Scratch& scratch, bool accumulate, const Tensor& dw) const {
    const int64_t c = class_tiles_.begin(classes);
    return ProductsFor(rows).dw.Run(classes, slot, scratch.gradients + c * rows.m,
                                    Elements<T>(x) + rows.begin * F_, accumulate, dw.f32() + c * F_,
                                    Scratchpad(scratch, slot));
  }

  absl::Status InputGradients(Stream& stream, const Rows& rows, const Tensor& w,
                              const Scratch& scratch, const Tensor& dx) const {
    FirstError error;
    T* const to = Elements<T>(dx) + rows.begin * F_;
    AsCpu(stream).ParallelFor(feature_tiles_.count, [&](int tile, int slot) {
      const int64_t f = feature_tiles_.begin(tile);
      float* sums = scratch.dx;
      if constexpr (kIsFloat<T>) sums = to;
      error.Update(ProductsFor(rows).dx.Run(tile, slot, scratch.gradients, Elements<T>(w) + f,
                                            false, sums + f, Scratchpad(scratch, slot)));
      if constexpr (!kIsFloat<T>) {
        for (int64_t r = 0; r < rows.m; ++r) {
          Convert(sums + r * F_ + f, feature_tiles_.length(tile), to + r * F_ + f);
        }
      }
    });
    return error.Take();
  }

  const int64_t R_, F_, C_, P_;
  const float cap_;
  const int slots_;
  const Tiling row_tiles_, class_tiles_, feature_tiles_;
  const int64_t M_;               // rows of the largest tile
  HeadProducts whole_, last_;     // `last_` is for the last tile of rows, if it has fewer
  int64_t scratchpad_bytes_ = 0;  // of a slot
};

}  // namespace

absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCpu(const HeadShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckHead(shape, kMaxExtent));
  if (shape.independent_rows) return CreateIndependentHead(shape, device);
  return ForActivationType(device, [&]<typename T>(T) -> absl::StatusOr<std::unique_ptr<HeadOp>> {
    auto op = std::make_unique<CpuHead<T>>(shape, AsCpu(device.stream()).threads());
    RETURN_IF_ERROR(op->Prepare());
    return op;
  });
}

}  // namespace stagecoach::kernels
