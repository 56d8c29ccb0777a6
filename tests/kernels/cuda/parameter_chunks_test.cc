#include "kernels/cuda/ops/parameter_chunks.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/optimizer_kernels.h"

namespace stagecoach::kernels::parameter_chunks_test {
namespace {

using ::testing::ElementsAre;

TEST(CutIntoChunks, OfNothingGivesNone) {
  const ParameterChunks cut = CutIntoChunks({});
  EXPECT_TRUE(cut.chunks.empty());
  EXPECT_THAT(cut.first_chunk, ElementsAre(0));
}

TEST(CutIntoChunks, CoversEachElementOnce) {
  std::array<float, 4> memory;  // only addresses matter
  const Tensor value = Float32(memory.data(), Shape{2, kChunkElements + 3});
  const ParameterTensors parameter = {.value = value, .gradient = value, .states = {value, value}};
  const ParameterChunks cut = CutIntoChunks({parameter, parameter});
  EXPECT_THAT(cut.first_chunk, ElementsAre(0, 3, 6));
  int64_t covered = 0;
  for (size_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_EQ(cut.chunks[chunk].value, memory.data() + covered);
    covered += cut.chunks[chunk].elements;
  }
  EXPECT_EQ(covered, value.elements());
}

TEST(CutIntoChunks, CutsAveragesLikeTheirParameters) {
  std::array<float, 4> memory;  // only addresses matter
  const Tensor value = Float32(memory.data(), Shape{kChunkElements + 3});
  const ParameterTensors without = {.value = value, .gradient = value};
  ParameterTensors with = without;
  with.ema = Float32(memory.data() + 1, value.shape);
  const ParameterChunks cut = CutIntoChunks({with, without});
  EXPECT_EQ(cut.chunks[0].ema, memory.data() + 1);
  EXPECT_EQ(cut.chunks[1].ema, memory.data() + 1 + kChunkElements);
  EXPECT_EQ(cut.chunks[2].ema, nullptr);
  EXPECT_FALSE(cut.chunks[0].aligned);
}

TEST(CutIntoChunksDeath, RefusesTensorsOfOtherSizes) {
  std::array<float, 8> memory;
  const ParameterTensors parameter = {.value = Float32(memory.data(), Shape{8}),
                                      .gradient = Float32(memory.data(), Shape{7})};
  EXPECT_DEATH(CutIntoChunks({parameter}), "a parameter of 8 elements");
}

}  // namespace
}  // namespace stagecoach::kernels::parameter_chunks_test
