#ifndef STAGECOACH_KERNELS_CPU_OPS_TILE_SHAPE_H_
#define STAGECOACH_KERNELS_CPU_OPS_TILE_SHAPE_H_

#include <cstdint>

// The block of c that TileProduct keeps in registers throughout its sum: kTileRows x 2 vectors of
// it, 2 vectors of a row of b, and one number of a. Only sources of operations, which are compiled
// for the actual processor, may include this: elsewhere the numbers would differ.
namespace stagecoach::kernels {

#if defined(__AVX512F__)
constexpr int64_t kTileVectorBytes = 64;  // with 32 registers
constexpr int64_t kTileRows = 8;
#elif defined(__AVX__)
constexpr int64_t kTileVectorBytes = 32;  // with 16 registers
constexpr int64_t kTileRows = 6;
#else
constexpr int64_t kTileVectorBytes = 16;
constexpr int64_t kTileRows = 6;
#endif
constexpr int64_t kTileColumns = 2 * kTileVectorBytes / 4;

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TILE_SHAPE_H_
