#include "kernels/ops/head.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/few_rows.h"
#include "kernels/cuda/ops/tokens/block_loss_kernels.h"
#include "kernels/cuda/ops/tokens/head_cap_kernels.h"
#include "kernels/cuda/ops/tokens/head_choice_kernels.h"
#include "kernels/cuda/ops/tokens/loss_kernels.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/products/matmul_plan.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

// The most workspace for the logits of a tile of rows. With 50,257 classes in bfloat16 that is
// 5,632 rows, whose product for dx, with 768 features, is 132 tiles of 128 x 256: one for each
// multiprocessor of an H100. Each tile of rows reads w twice, and reads and writes dw, 460 MB in
// all: 0.1 ms, while its three products take 1.6 ms. So more rows would save only 3 % of that.
constexpr int64_t kLogitsBytes = int64_t{544} << 20;

// The granule of classes: cuBLASLt's fast algorithms need 16 bytes of classes at a time. On an
// H200, products of 10,944 rows with 768 features and 50,257 classes ran at 102 (logits), 135 (dx)
// and 521 TFLOP/s (dw), and with 50,264 classes at 739, 838 and 810.
constexpr int64_t kVectorBytes = 16;

// Rows of logits begin at multiples of 128 bytes: cuBLASLt's algorithms require alignment of
// addresses and leading dimensions (CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_*), not of extents.
constexpr int64_t kClassGranule = 64;

int64_t RoundUp(int64_t value, int64_t granule) {
  return (value + granule - 1) / granule * granule;
}

// Returns the rows of a tile: there are as few tiles as possible, and all but the last are equally
// long.
int64_t RowsOfTile(const HeadShape& shape, int64_t row_bytes) {
  int64_t most =
      std::max(kLogitsBytes / row_bytes / kHeadTileGranule, int64_t{1}) * kHeadTileGranule;
  if (shape.tile_rows > 0) most = std::min(most, shape.tile_rows);
  if (shape.rows <= most) return shape.rows;
  const int64_t tiles = (shape.rows + most - 1) / most;
  return RoundUp((shape.rows + tiles - 1) / tiles, kHeadTileGranule);
}

// Names of extents are those of kernels/ops/head.h; m is the number of rows in a tile.
class CudaHead final : public HeadOp {
 public:
  CudaHead(const HeadShape& shape, DType type, const Tuner& tuner)
      : shape_(shape),
        type_(type),
        starts_early_(tuner.starts_kernels_early()),
        block_shared_bytes_(tuner.block_shared_bytes()),
        leading_(RoundUp(shape.classes, kClassGranule)),
        M_(RowsOfTile(shape, leading_ * SizeOf(type))),
        filled_(RoundUp(shape.classes, kVectorBytes / SizeOf(type))) {
    const int64_t rest = shape.classes % (kVectorBytes / SizeOf(type));
    if (shape.classes > rest) parts_.push_back({0, shape.classes - rest});
    if (rest > 0) parts_.push_back({shape.classes - rest, rest});
  }

  absl::Status Prepare(BlasLt& blas) {
    RETURN_IF_ERROR(Plan(blas, M_, whole_));
    const int64_t rest = shape_.rows % M_;
    if (rest > 0) RETURN_IF_ERROR(Plan(blas, rest, last_));
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override {
    return kScratchAlignment + logits_bytes() + row_losses_bytes() + filled_w_bytes() +
           product_bytes_;
  }
  int64_t statistics_bytes() const override {
    return shape_.rows * static_cast<int64_t>(sizeof(RowSoftmax));
  }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                       const LossTerms* terms, const Tensor& logits, const Tensor& result,
                       std::byte* workspace) override {
    CudaStream& cuda = AsCuda(stream);
    const Scratch scratch = ScratchAt(workspace);
    const Loss loss = {labels, terms, result};
    RETURN_IF_ERROR(ForTiles([&](const Tile& tile) -> absl::Status {
      RETURN_IF_ERROR(Logits(cuda.compute(), tile, x, w, scratch));
      const int64_t row_bytes = shape_.classes * SizeOf(type_);
      const int64_t wanted =
          logits.empty() ? 0 : std::min(tile.rows, logits.elements() / shape_.classes - tile.begin);
      if (wanted > 0) {
        RETURN_IF_ERROR(
            cuda.CopyRowsToHost(static_cast<std::byte*>(logits.data) + tile.begin * row_bytes,
                                scratch.logits, leading_ * SizeOf(type_), row_bytes, wanted));
      }
      if (result.empty()) return absl::OkStatus();
      return Losses(cuda.compute(), tile, loss, Gradient::kNone, nullptr, scratch);
    }));
    return result.empty() ? absl::OkStatus() : Result(cuda.compute(), loss, scratch);
  }

  absl::Status Choose(Stream& stream, const Tensor& x, const Tensor& w, const HeadChoice& choice,
                      std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    const HeadRowArguments row = RowArguments(x, w, scratch);
    if (TakesRow(row)) return CudaStatus(LaunchHeadRow(compute, row, choice), "LaunchHeadRow");
    RETURN_IF_ERROR(Logits(compute, {0, M_, whole_}, x, w, scratch));
    return CudaStatus(LaunchHeadChoice(compute, ElementTypeOf(type_), scratch.logits, choice),
                      "LaunchHeadChoice");
  }

  bool chooses_of_norm() const override { return TakesRow({.features = shape_.features}); }

  absl::Status ChooseOfNorm(Stream& stream, const InputNorm& norm, const Tensor& x, const Tensor& w,
                            const HeadChoice& choice, std::byte* workspace) override {
    HeadRowArguments row = RowArguments(x, w, ScratchAt(workspace));
    row.norm = ArgumentsOf(norm);
    if (!TakesRow(row)) {
      return absl::InvalidArgumentError("head: addresses must be multiples of 16");
    }
    return CudaStatus(LaunchHeadRow(AsCuda(stream).compute(), row, choice), "LaunchHeadRow");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                             const LossTerms* terms, const Tensor& result, const Tensor& dx,
                             std::byte* statistics, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    const Loss loss = {labels, terms, result};
    ASSIGN_OR_RETURN(const std::byte* const filled_w, FilledW(AsCuda(stream), w, dx, scratch));
    RETURN_IF_ERROR(ForTiles([&](const Tile& tile) -> absl::Status {
      RETURN_IF_ERROR(Logits(compute, tile, x, w, scratch));
      RETURN_IF_ERROR(Losses(compute, tile, loss, dx.empty() ? Gradient::kNone : Gradient::kInPlace,
                             reinterpret_cast<RowSoftmax*>(statistics), scratch));
      return InputGradient(compute, tile, filled_w, dx, scratch);
    }));
    return Result(compute, loss, scratch);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& w,
                              const std::byte* statistics, const Tensor& dw, bool accumulate,
                              std::byte* workspace) override {
    return GradientsOfBlock(stream, x, w, 0, statistics, {}, dw, accumulate, workspace);
  }

  absl::Status Backward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& labels,
                        const LossTerms* terms, const Tensor& result, const Tensor& dx,
                        const Tensor& dw, bool accumulate, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    const Loss loss = {labels, terms, result};
    ASSIGN_OR_RETURN(const std::byte* const filled_w, FilledW(AsCuda(stream), w, dx, scratch));
    RETURN_IF_ERROR(ForTiles([&](const Tile& tile) -> absl::Status {
      RETURN_IF_ERROR(Logits(compute, tile, x, w, scratch));
      RETURN_IF_ERROR(Losses(compute, tile, loss, Gradient::kInPlace, nullptr, scratch));
      RETURN_IF_ERROR(WeightGradient(compute, tile, x, dw, accumulate, scratch));
      return InputGradient(compute, tile, filled_w, dx, scratch);
    }));
    return Result(compute, loss, scratch);
  }

  absl::Status NumbersOfBlock(Stream& stream, const Tensor& x, const Tensor& w,
                              const Tensor& labels, int64_t first, const Tensor& numbers,
                              std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    return ForTiles([&](const Tile& tile) -> absl::Status {
      RETURN_IF_ERROR(Logits(compute, tile, x, w, scratch));
      CrossEntropyTile rows = TileOf(tile, scratch);
      rows.loss.labels = labels.i32();
      rows.first_class = static_cast<int32_t>(first);
      return CudaStatus(
          LaunchBlockContribution(compute, ElementTypeOf(type_), rows, ContributionAt(numbers)),
          "LaunchBlockContribution");
    });
  }

  absl::Status JoinBlocks(Stream& stream, const Tensor& numbers, int64_t classes,
                          const Tensor& labels, const LossTerms* terms, const Tensor& result,
                          std::byte* statistics, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    const int64_t stride = kBlockNumbers * shape_.rows;
    RETURN_IF_ERROR(CudaStatus(
        LaunchJoinBlocks(compute, {.loss = {.rows = shape_.rows,
                                            .classes = classes,
                                            .positions = shape_.positions,
                                            .terms = terms,
                                            .labels = labels.i32(),
                                            .workspace = scratch.row_losses},
                                   .first = ContributionAt(numbers),
                                   .stride = stride,
                                   .count = numbers.elements() / stride,
                                   .softmax = reinterpret_cast<RowSoftmax*>(statistics)}),
        "LaunchJoinBlocks"));
    return Result(compute, {labels, terms, result}, scratch);
  }

  absl::Status GradientsOfBlock(Stream& stream, const Tensor& x, const Tensor& w, int64_t first,
                                const std::byte* statistics, const Tensor& dx, const Tensor& dw,
                                bool accumulate, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const Scratch scratch = ScratchAt(workspace);
    ASSIGN_OR_RETURN(const std::byte* const filled_w, FilledW(AsCuda(stream), w, dx, scratch));
    return ForTiles([&](const Tile& tile) -> absl::Status {
      RETURN_IF_ERROR(Logits(compute, tile, x, w, scratch));
      CrossEntropyTile rows = TileOf(tile, scratch);
      rows.loss.gradient = scratch.logits;
      rows.first_class = static_cast<int32_t>(first);
      RETURN_IF_ERROR(
          CudaStatus(LaunchCrossEntropyGradient(compute, ElementTypeOf(type_), rows,
                                                reinterpret_cast<const RowSoftmax*>(statistics)),
                     "LaunchCrossEntropyGradient"));
      if (!dw.empty()) RETURN_IF_ERROR(WeightGradient(compute, tile, x, dw, accumulate, scratch));
      return InputGradient(compute, tile, filled_w, dx, scratch);
    });
  }

 private:
  struct Scratch {
    std::byte* logits;      // (M, leading_), then their gradients
    LossOfRow* row_losses;  // (R)
    std::byte* filled_w;    // (filled_, F), or nothing if w needs no padding
    std::byte* product;     // workspace of products
  };

  // The classes of one product.
  struct Part {
    int64_t begin, classes;
  };
  // The products of logits and dw are for one part each.
  struct Products {
    std::vector<const MatmulPlan*> logits, dw;
    const MatmulPlan* dx = nullptr;
  };

  struct Tile {
    int64_t begin, rows;
    const Products& products;
  };

  struct Loss {
    const Tensor& labels;
    const LossTerms* terms;
    const Tensor& result;
  };

  enum class Gradient : uint8_t { kNone, kInPlace };

  HeadRowArguments RowArguments(const Tensor& x, const Tensor& w, const Scratch& scratch) const {
    return {.features = shape_.features,
            .x = x.data,
            .w = w.data,
            .candidates = scratch.logits,  // which take more room
            .starts_early = starts_early_};
  }
  // Returns whether the kernel for one row chooses, with or without a norm.
  bool TakesRow(const HeadRowArguments& row) const {
    return shape_.logit_cap == 0.0F && FitsHeadRow(ElementTypeOf(type_), row) &&
           HeadRowSharedBytes(shape_.features, true) <= block_shared_bytes_;
  }

  absl::Status Plan(BlasLt& blas, int64_t m, Products& products) {
    const int64_t F = shape_.features;
    const auto plan = [&](Product product, const MatmulPlan*& to) -> absl::Status {
      product.operand_type = type_;
      product_bytes_ =
          std::max(product_bytes_, MatmulWorkspaceBytes(product, blas.compute_major()));
      ASSIGN_OR_RETURN(to, blas.Plan(product));
      return absl::OkStatus();
    };
    for (const auto& [begin, C] : parts_) {
      // z^T (C, m) = w (C, F) x^T (F, m)
      RETURN_IF_ERROR(
          plan({.transpose_a = true, .m = C, .n = m, .k = F, .result_type = type_, .ldd = leading_},
               products.logits.emplace_back()));
      // dw^T (F, C) = x^T (F, m) dz (m, C)
      RETURN_IF_ERROR(plan({.transpose_b = true, .m = F, .n = C, .k = m, .ldb = leading_},
                           products.dw.emplace_back()));
    }
    // dx^T (F, m) = w^T (F, filled_) dz^T (filled_, m)
    return plan({.m = F, .n = m, .k = filled_, .result_type = type_, .ldb = leading_}, products.dx);
  }

  int64_t logits_bytes() const { return AlignScratch(M_ * leading_ * SizeOf(type_)); }
  int64_t row_losses_bytes() const {
    return AlignScratch(shape_.rows * static_cast<int64_t>(sizeof(LossOfRow)));
  }
  int64_t filled_w_bytes() const {
    return filled_ == shape_.classes ? 0 : AlignScratch(filled_ * shape_.features * SizeOf(type_));
  }
  Scratch ScratchAt(std::byte* workspace) const {
    std::byte* const logits = AlignScratch(workspace);
    std::byte* const row_losses = logits + logits_bytes();
    std::byte* const filled_w = row_losses + row_losses_bytes();
    return {logits, reinterpret_cast<LossOfRow*>(row_losses), filled_w,
            filled_w + filled_w_bytes()};
  }

  absl::Status ForTiles(absl::FunctionRef<absl::Status(const Tile&)> work) const {
    for (int64_t begin = 0; begin < shape_.rows; begin += M_) {
      const int64_t rows = std::min(M_, shape_.rows - begin);
      RETURN_IF_ERROR(work({begin, rows, rows == M_ ? whole_ : last_}));
    }
    return absl::OkStatus();
  }

  // Returns the tile's rows of x or dx.
  std::byte* RowsOf(const Tile& tile, const Tensor& tensor) const {
    return static_cast<std::byte*>(tensor.data) + tile.begin * shape_.features * SizeOf(type_);
  }

  absl::Status Logits(cudaStream_t stream, const Tile& tile, const Tensor& x, const Tensor& w,
                      const Scratch& scratch) const {
    const int64_t row_bytes = shape_.features * SizeOf(type_);
    for (size_t i = 0; i < parts_.size(); ++i) {
      RETURN_IF_ERROR(tile.products.logits[i]->Run(
          stream,
          {.a = static_cast<const std::byte*>(w.data) + parts_[i].begin * row_bytes,
           .b = RowsOf(tile, x),
           .d = scratch.logits + parts_[i].begin * SizeOf(type_)},
          scratch.product));
    }
    if (shape_.logit_cap == 0.0F) return absl::OkStatus();
    return CudaStatus(LaunchHeadCap(stream, ElementTypeOf(type_), shape_.logit_cap,
                                    tile.rows * leading_, scratch.logits),
                      "LaunchHeadCap");
  }

  // Returns w for dx, padded with rows of zeros; null if no dx is wanted.
  absl::StatusOr<const std::byte*> FilledW(CudaStream& stream, const Tensor& w, const Tensor& dx,
                                           const Scratch& scratch) const {
    const auto* const given = static_cast<const std::byte*>(w.data);
    if (dx.empty()) return nullptr;
    if (filled_ == shape_.classes) return given;
    const int64_t row_bytes = shape_.features * SizeOf(type_);
    const int64_t bytes = shape_.classes * row_bytes;
    RETURN_IF_ERROR(stream.Copy(scratch.filled_w, given, bytes));
    IssueCount::Add(1);
    RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(scratch.filled_w + bytes, 0,
                                   static_cast<size_t>((filled_ - shape_.classes) * row_bytes),
                                   stream.compute()),
                   "cudaMemsetAsync"));
    return scratch.filled_w;
  }

  absl::Status InputGradient(cudaStream_t stream, const Tile& tile, const std::byte* filled_w,
                             const Tensor& dx, const Scratch& scratch) const {
    if (dx.empty()) return absl::OkStatus();
    return tile.products.dx->Run(
        stream, {.a = filled_w, .b = scratch.logits, .d = RowsOf(tile, dx)}, scratch.product);
  }

  absl::Status WeightGradient(cudaStream_t stream, const Tile& tile, const Tensor& x,
                              const Tensor& dw, bool accumulate, const Scratch& scratch) const {
    const bool adds = accumulate || tile.begin > 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      float* const sums = dw.f32() + parts_[i].begin * shape_.features;
      RETURN_IF_ERROR(
          tile.products.dw[i]->Run(stream,
                                   {.a = RowsOf(tile, x),
                                    .b = scratch.logits + parts_[i].begin * SizeOf(type_),
                                    .d = sums,
                                    .addend = adds ? sums : nullptr},
                                   scratch.product));
    }
    return absl::OkStatus();
  }

  CrossEntropyTile TileOf(const Tile& tile, const Scratch& scratch) const {
    return {.loss = {.rows = tile.rows,
                     .classes = shape_.classes,
                     .positions = shape_.positions,
                     .output = scratch.logits,
                     .workspace = scratch.row_losses},
            .first_row = tile.begin,
            .leading = leading_,
            .cap = shape_.logit_cap};
  }

  // Returns where the numbers of a block lie, or those of the first of several.
  BlockContribution ContributionAt(const Tensor& numbers) const {
    const auto at = [&](BlockNumber number) {
      return numbers.f32() + static_cast<int64_t>(number) * shape_.rows;
    };
    return {.maximum = at(BlockNumber::kMaximum),
            .sum = at(BlockNumber::kSum),
            .sum_rest = at(BlockNumber::kSumRest),
            .at_label = at(BlockNumber::kAtLabel),
            .largest = at(BlockNumber::kLargest)};
  }

  absl::Status Losses(cudaStream_t stream, const Tile& tile, const Loss& loss, Gradient gradient,
                      RowSoftmax* softmax, const Scratch& scratch) const {
    CrossEntropyTile rows = TileOf(tile, scratch);
    rows.loss.terms = loss.terms;
    rows.loss.labels = loss.labels.i32();
    if (gradient == Gradient::kInPlace) rows.loss.gradient = scratch.logits;
    rows.softmax = softmax;
    return CudaStatus(LaunchCrossEntropyRows(stream, ElementTypeOf(type_), rows),
                      "LaunchCrossEntropyRows");
  }

  absl::Status Result(cudaStream_t stream, const Loss& loss, const Scratch& scratch) const {
    return CudaStatus(LaunchLossSum(stream, {.positions = shape_.positions,
                                             .terms = loss.terms,
                                             .workspace = scratch.row_losses,
                                             .result = loss.result.f64()}),
                      "LaunchLossSum");
  }

  const HeadShape shape_;
  const DType type_;
  const bool starts_early_;  // kernels for one row
  const int64_t block_shared_bytes_;
  const int64_t leading_;  // elements from one row of logits to the next
  const int64_t M_;        // rows of the largest tile
  const int64_t filled_;   // classes, rounded up to whole vectors
  std::vector<Part> parts_;
  Products whole_, last_;  // `last_` is for the last tile of rows, if it has fewer
  int64_t product_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCuda(const HeadShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckHead(shape, kMaxCudaExtent));
  if (shape.independent_rows) {
    return absl::UnimplementedError("head has no CUDA kernel for rows of several sequences");
  }
  auto op = std::make_unique<CudaHead>(shape, device.activation_type(), TunerOf(device));
  RETURN_IF_ERROR(base::Annotate(op->Prepare(BlasOf(device)),
                                 absl::StrCat("head, ", shape.rows, " rows, ", shape.features,
                                              " features, ", shape.classes, " classes")));
  return std::unique_ptr<HeadOp>(std::move(op));
}

}  // namespace stagecoach::kernels
