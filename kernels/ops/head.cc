#include "kernels/ops/head.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace stagecoach::kernels {

namespace {

absl::Status NoBlocks() {
  return absl::UnimplementedError("head: its classes cannot be divided into blocks");
}

}  // namespace

absl::Status HeadOp::NumbersOfBlock(Stream& /*stream*/, const Tensor& /*x*/, const Tensor& /*w*/,
                                    const Tensor& /*labels*/, int64_t /*first*/,
                                    const Tensor& /*numbers*/, std::byte* /*workspace*/) {
  return NoBlocks();
}

absl::Status HeadOp::JoinBlocks(Stream& /*stream*/, const Tensor& /*numbers*/, int64_t /*classes*/,
                                const Tensor& /*labels*/, const LossTerms* /*terms*/,
                                const Tensor& /*result*/, std::byte* /*statistics*/,
                                std::byte* /*workspace*/) {
  return NoBlocks();
}

absl::Status HeadOp::GradientsOfBlock(Stream& /*stream*/, const Tensor& /*x*/, const Tensor& /*w*/,
                                      int64_t /*first*/, const std::byte* /*statistics*/,
                                      const Tensor& /*dx*/, const Tensor& /*dw*/,
                                      bool /*accumulate*/, std::byte* /*workspace*/) {
  return NoBlocks();
}

absl::Status CheckHead(const HeadShape& shape, int64_t max_extent) {
  if (shape.positions < 1 || shape.rows % shape.positions != 0) {
    return absl::InvalidArgumentError(absl::StrCat("head: ", shape.rows, " rows are no samples of ",
                                                   shape.positions, " positions"));
  }
  if (shape.tile_rows < 0 || shape.tile_rows % kHeadTileGranule != 0) {
    return absl::InvalidArgumentError(absl::StrCat("head: the rows of a tile are a multiple of ",
                                                   kHeadTileGranule, ", not ", shape.tile_rows));
  }
  if (!(shape.logit_cap >= 0.0F) || std::isinf(shape.logit_cap)) {
    return absl::InvalidArgumentError(
        absl::StrCat("head: the cap of logits is at least 0, not ", shape.logit_cap));
  }
  const auto is_extent = [&](int64_t value) { return value >= 1 && value <= max_extent; };
  if (!is_extent(shape.rows) || !is_extent(shape.features) || !is_extent(shape.classes)) {
    return absl::InvalidArgumentError(absl::StrCat("head: extents must be 1 to ", max_extent, ": ",
                                                   shape.rows, " rows, ", shape.features,
                                                   " features, ", shape.classes, " classes"));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::kernels
