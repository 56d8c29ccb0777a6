#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/ops/images/windows_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;                      // numbers that a thread writes at once
constexpr int64_t kTileNumbers = 10 << 10;    // of an image, in shared memory
constexpr int kNoNumber = -1;                 // the offset of a column of zeros

// The windows of one row of the output, from `first` on, see `rows` by `numbers` numbers.
struct WindowTile {
  int windows;  // of a block
  int parts;    // of a row of the output
  int rows, numbers;
};

WindowTile TileOf(const WindowsArguments& a) {
  const int64_t of_column = int64_t{a.kernel} * a.inputs;
  const int64_t columns = std::max<int64_t>(kTileNumbers / of_column, a.kernel);
  const int64_t windows =
      std::clamp<int64_t>((columns - a.kernel) / a.stride + 1, 1, a.output_width);
  return {.windows = static_cast<int>(windows),
          .parts = static_cast<int>((a.output_width + windows - 1) / windows),
          .rows = a.kernel,
          .numbers = static_cast<int>(((windows - 1) * a.stride + a.kernel) * a.inputs)};
}

// A block has windows that are neighbors in a row. Their part of the image comes into shared memory
// once; a thread always has the same columns, so that it finds out but once where they are.
__global__ void __launch_bounds__(kThreads) WindowsKernel(const WindowsArguments a,
                                                          const WindowTile tile) {
  auto* const numbers = SharedMemory<uint16_t>();
  const int part = static_cast<int>(blockIdx.x) % tile.parts;
  const int64_t row = static_cast<int64_t>(blockIdx.x) / tile.parts;  // (n, p)
  const int64_t n = row / a.output_height;
  const int p = static_cast<int>(row - n * a.output_height);
  const int first = part * tile.windows;
  const int windows = min(tile.windows, a.output_width - first);

  const int64_t image_row = int64_t{a.width} * a.inputs;
  const auto* const image = static_cast<const uint16_t*>(a.images) + n * a.height * image_row;
  const int64_t begin = (int64_t{first} * a.stride - a.padding) * a.inputs;
  for (int k = 0; k < tile.rows; ++k) {
    const int64_t h = int64_t{p} * a.stride + k - a.padding;
    const bool is_inside = h >= 0 && h < a.height;
    for (int i = static_cast<int>(threadIdx.x); i < tile.numbers; i += kThreads) {
      const int64_t at = begin + i;
      numbers[k * tile.numbers + i] = is_inside && at >= 0 && at < image_row
                                          ? image[h * image_row + at]
                                          : uint16_t{0};
    }
  }
  __syncthreads();

  const int units = a.columns / kUnit, together = kThreads / units;
  const int own = static_cast<int>(threadIdx.x) / units;  // the thread's first window
  const int unit = static_cast<int>(threadIdx.x) - own * units;
  if (own >= together) return;
  int offsets[kUnit];
#pragma unroll
  for (int j = 0; j < kUnit; ++j) {
    const int column = unit * kUnit + j, area = a.kernel * a.kernel;
    const int input = column / area, k = column % area / a.kernel, l = column % a.kernel;
    offsets[j] = input < a.inputs ? k * tile.numbers + l * a.inputs + input : kNoNumber;
  }
  const int step = a.stride * a.inputs;
  auto* const to = static_cast<uint4*>(a.windows) + (row * a.output_width + first) * units + unit;
  for (int q = own; q < windows; q += together) {
    uint32_t words[kUnit / 2];
#pragma unroll
    for (int j = 0; j < kUnit; j += 2) {
      const uint32_t low = offsets[j] == kNoNumber ? 0U : numbers[offsets[j] + q * step];
      const uint32_t high = offsets[j + 1] == kNoNumber ? 0U : numbers[offsets[j + 1] + q * step];
      words[j / 2] = low | high << 16;
    }
    to[static_cast<int64_t>(q) * units] = {words[0], words[1], words[2], words[3]};
  }
}

}  // namespace

cudaError_t LaunchWindows(cudaStream_t stream, const WindowsArguments& arguments) {
  const WindowTile tile = TileOf(arguments);
  const int64_t blocks = arguments.samples * arguments.output_height * tile.parts;
  return Launch(WindowsKernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(tile.rows) * static_cast<size_t>(tile.numbers) *
                    sizeof(uint16_t),
                stream, arguments, tile);
}

}  // namespace stagecoach::kernels
