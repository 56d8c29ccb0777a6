#include <bit>
#include <cstring>

#include "tests/testing/cuda/emulator/block.h"
#include "tests/testing/cuda/runner.h"

// The layouts are from the PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix". In a lane,
// `group` is its number divided by 4, and `member` the remainder; every word has two neighbors, the
// first in its lower half.
namespace stagecoach::testing::cuda {
namespace {

float Half(uint32_t word, unsigned upper) {
  return std::bit_cast<float>(upper != 0 ? word & 0xffff0000u : word << 16);
}

struct Multiplication {
  float (&c)[4];
  const uint32_t (&a)[4];
  const uint32_t b[2];
};

void Multiply(void* const* operands) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
    const auto& own = *static_cast<const Multiplication*>(operands[lane]);
    const unsigned group = lane / 4, member = lane % 4;
    for (unsigned word = 0; word < 4; ++word) {
      const unsigned row = group + word % 2 * 8, column = 2 * member + word / 2 * 8;
      for (unsigned i = 0; i < 2; ++i) a[row][column + i] = Half(own.a[word], i);
    }
    for (unsigned word = 0; word < 2; ++word) {
      for (unsigned i = 0; i < 2; ++i) b[2 * member + word * 8 + i][group] = Half(own.b[word], i);
    }
  }
  for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
    const auto& own = *static_cast<const Multiplication*>(operands[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      float sum = own.c[i];
      // A product of two bfloat16 is exact in float32.
      for (unsigned k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      own.c[i] = sum;
    }
  }
}

struct Load {
  const void* row;
  uint32_t (&matrices)[4];
};

template <bool kTransposed>
void LoadAll(void* const* operands) {
  uint16_t matrices[4][8][8];
  for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
    std::memcpy(matrices[lane / 8][lane % 8], static_cast<const Load*>(operands[lane])->row, 16);
  }
  for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
    const auto& own = *static_cast<const Load*>(operands[lane]);
    const unsigned group = lane / 4, member = lane % 4;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      const auto& from = matrices[matrix];
      const unsigned lower = kTransposed ? from[2 * member][group] : from[group][2 * member];
      const unsigned upper =
          kTransposed ? from[2 * member + 1][group] : from[group][2 * member + 1];
      own.matrices[matrix] = lower | upper << 16;
    }
  }
}

}  // namespace

void MultiplyTiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                   Location location) {
  Multiplication own{c, a, {b0, b1}};
  WarpTogether(&Multiply, &own, location);
}

void LoadMatrices(const void* row, bool transposed, uint32_t (&matrices)[4], Location location) {
  Runner::Get().CheckShared(row, location);
  Load own{row, matrices};
  WarpTogether(transposed ? &LoadAll<true> : &LoadAll<false>, &own, location);
}

}  // namespace stagecoach::testing::cuda
