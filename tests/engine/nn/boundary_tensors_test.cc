#include "engine/nn/boundary_tensors.h"

#include <cstddef>

#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;

TEST(BoundaryTensors, OfOneTensorIsAsLargeAsThat) {
  const BoundaryTensors bundle({Shape{5}}, /*rows=*/3, DType::kFloat32);
  EXPECT_EQ(bundle.size(), 1);
  EXPECT_EQ(bundle.bytes(), 60);
}

TEST(BoundaryTensors, TensorsFollowOneAnotherAtAlignedOffsets) {
  const BoundaryTensors bundle({Shape{5}, Shape{2, 32}, Shape{1}}, /*rows=*/3, DType::kBfloat16);
  std::byte block[64 + 384 + 6];
  EXPECT_EQ(bundle.At(0, block).data, block);
  EXPECT_EQ(bundle.At(1, block).data, block + 64) << "30 bytes, rounded up";
  EXPECT_EQ(bundle.At(2, block).data, block + 64 + 384);
  EXPECT_EQ(bundle.bytes(), static_cast<int64_t>(sizeof(block))) << "the last is not rounded up";
  EXPECT_EQ(bundle.At(1, block).shape, (Shape{3, 2, 32}));
  EXPECT_EQ(bundle.At(1, block).dtype, DType::kBfloat16);
}

TEST(BoundaryTensors, WithoutABlockHasEmptyTensors) {
  EXPECT_TRUE(BoundaryTensors({Shape{5}}, /*rows=*/3, DType::kFloat32).At(0, nullptr).empty());
}

}  // namespace
}  // namespace stagecoach::engine
