#include "kernels/ops/embedding.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/column_sums_kernels.h"
#include "kernels/cuda/ops/tokens/embedding_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaEmbedding final : public EmbeddingOp {
 public:
  CudaEmbedding(const EmbeddingShape& shape, ElementType type) : shape_(shape), type_(type) {}

  int64_t workspace_bytes() const override {
    return kScratchAlignment + order_bytes() +
           (shape_.has_positions ? ColumnSumsWorkspaceBytes(shape_.rows, sample_elements()) : 0);
  }

  absl::Status Forward(Stream& stream, const Tensor& ids, const Tensor& tokens,
                       const Tensor& positions, const CachedRow* rows, const Tensor& y) override {
    const EmbeddingForwardArguments arguments = {
        .ids_count = ids_count(),
        .positions = shape_.positions,
        .sequence = shape_.sequence,
        .first_position = rows == nullptr ? nullptr : &rows->position,
        .vocabulary = shape_.vocabulary,
        .features = shape_.features,
        .scale = scale(),
        .all_ids = shape_.all_ids,
        .first = shape_.first,
        .ids = ids.i32(),
        .tokens = tokens.data,
        .position_table = shape_.has_positions && shape_.first == 0 ? positions.data : nullptr,
        .y = y.data};
    return CudaStatus(LaunchEmbeddingForward(AsCuda(stream).compute(), type_, arguments),
                      "LaunchEmbeddingForward");
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& ids, const Tensor& dy,
                              const Tensor& dtokens, const Tensor& dpositions, bool accumulate,
                              std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    RETURN_IF_ERROR(CudaStatus(LaunchEmbeddingBackward(compute, type_,
                                                       {.ids_count = ids_count(),
                                                        .vocabulary = shape_.vocabulary,
                                                        .features = shape_.features,
                                                        .scale = scale(),
                                                        .all_ids = shape_.all_ids,
                                                        .first = shape_.first,
                                                        .ids = ids.i32(),
                                                        .dy = dy.data,
                                                        .dtokens = dtokens.f32(),
                                                        .accumulate = accumulate,
                                                        .workspace = AlignScratch(workspace)}),
                               "LaunchEmbeddingBackward"));
    if (!shape_.has_positions) return absl::OkStatus();
    return CudaStatus(
        LaunchColumnSums(
            compute, type_,
            {.rows = shape_.rows,
             .columns = sample_elements(),
             .matrix = dy.data,
             .sums = dpositions.f32(),
             .accumulate = accumulate,
             .workspace = reinterpret_cast<float*>(AlignScratch(workspace) + order_bytes())}),
        "LaunchColumnSums");
  }

 private:
  int64_t ids_count() const { return shape_.rows * shape_.positions; }
  int64_t order_bytes() const {
    return AlignScratch(EmbeddingBackwardBytes(ids_count(), shape_.features));
  }
  int64_t sample_elements() const { return shape_.positions * shape_.features; }
  float scale() const {
    return type_ == ElementType::kBfloat16 ? float{Bfloat16(shape_.scale)} : shape_.scale;
  }

  const EmbeddingShape shape_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EmbeddingOp>> CreateOnCuda(const EmbeddingShape& shape,
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
  if (!IsCudaExtent(shape.rows) || !IsCudaExtent(shape.positions) ||
      !IsCudaExtent(shape.rows * shape.positions) || !IsCudaExtent(shape.vocabulary) ||
      shape.features < 1 || shape.features > kMaxEmbeddingFeatures ||
      !IsCudaExtent(shape.positions * shape.features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding: extents must be 1 to ", kMaxCudaExtent,
                     ", ids in all and numbers of a sample ", "too, and features at most ",
                     kMaxEmbeddingFeatures, ": ", shape.rows, " rows, ", shape.positions,
                     " positions, ", shape.vocabulary, " words, ", shape.features, " features"));
  }
  if (!shape.has_block() || shape.all_ids > kMaxCudaExtent) {
    return absl::InvalidArgumentError(absl::StrCat(
        "embedding: a block of ", shape.vocabulary, " ids from ", shape.first,
        " on must be among all ", shape.all_ids, " ids, which are at most ", kMaxCudaExtent));
  }
  return std::unique_ptr<EmbeddingOp>(
      std::make_unique<CudaEmbedding>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
