#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/ops/images/windows_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 8;                    // numbers that a thread reads or writes at once
constexpr int64_t kTileNumbers = 10 << 10;  // of an image, in shared memory
constexpr int64_t kBlockUnits = 2 << 10;    // that a block writes, unless a row of windows has more
constexpr int kBlocksAtOnce = 6;            // on a multiprocessor
constexpr uint16_t kNoNumber = 0xffff;      // the offset of a column of zeros
// The threads of a warp write neighbors in pairs, whole sectors of memory, for these many windows:
// so they read shared memory at distances of a window's stride, in different banks, while numbers
// in the order of a weight have any distances.
constexpr int kPair = 2;
constexpr int kWarp = 32;
constexpr int kWarpWindows = kWarp / kPair;

// The windows of some rows of the output, in each from `first` on, see `rows` by `numbers` numbers.
// Each row of the tile begins with up to kUnit - 1 more, so that units of memory are units of the
// tile.
struct WindowTile {
  int windows;      // of a block, in each row of the output
  int parts;        // of a row of the output
  int output_rows;  // of a block
  int groups;       // of output rows
  int rows, numbers;
  int row_units;

  __host__ __device__ int row_numbers() const { return row_units * kUnit; }
};

WindowTile TileOf(const WindowsArguments& a) {
  const int64_t of_column = int64_t{a.kernel} * a.inputs;
  const int64_t columns = std::max<int64_t>(kTileNumbers / of_column, a.kernel);
  const int64_t windows =
      std::clamp<int64_t>((columns - a.kernel) / a.stride + 1, 1, a.output_width);
  const int64_t numbers = ((windows - 1) * a.stride + a.kernel) * a.inputs;
  const int64_t row_units = (numbers + 2 * (kUnit - 1)) / kUnit;
  const int64_t most_rows = kTileNumbers / (row_units * kUnit);
  const int64_t by_memory = most_rows < a.kernel ? 1 : (most_rows - a.kernel) / a.stride + 1;
  const int64_t by_work = kBlockUnits / (windows * (a.columns / kUnit));
  const int64_t output_rows =
      std::clamp<int64_t>(std::min(by_memory, by_work), 1, a.output_height);
  return {.windows = static_cast<int>(windows),
          .parts = static_cast<int>((a.output_width + windows - 1) / windows),
          .output_rows = static_cast<int>(output_rows),
          .groups = static_cast<int>((a.output_height + output_rows - 1) / output_rows),
          .rows = static_cast<int>((output_rows - 1) * a.stride + a.kernel),
          .numbers = static_cast<int>(numbers),
          .row_units = static_cast<int>(row_units)};
}

// Returns a number's place in the first window of a tile, or kNoNumber.
__device__ uint16_t OffsetOf(const WindowsArguments& a, const WindowTile& tile, int column) {
  const int area = a.kernel * a.kernel;
  const int input = column / area, k = column % area / a.kernel, l = column % a.kernel;
  return input < a.inputs ? static_cast<uint16_t>(k * tile.row_numbers() + l * a.inputs + input)
                          : kNoNumber;
}

// A block has windows that are neighbors in a row, or in several. Their part of the image comes into shared memory
// once, in units if each row of an image is a number of them.
template <bool kInUnits>
__global__ void __launch_bounds__(kThreads, kBlocksAtOnce) WindowsKernel(const WindowsArguments a,
                                                          const WindowTile tile) {
  auto* const offsets = SharedMemory<uint16_t>();
  uint16_t* const numbers = offsets + a.columns;
  const int part = static_cast<int>(blockIdx.x) % tile.parts;
  const int64_t group = static_cast<int64_t>(blockIdx.x) / tile.parts;
  const int64_t n = group / tile.groups;
  const int p = static_cast<int>(group - n * tile.groups) * tile.output_rows;
  const int first = part * tile.windows;
  const int windows = min(tile.windows, a.output_width - first);
  const int all_windows = windows * min(tile.output_rows, a.output_height - p);

  const int64_t image_row = int64_t{a.width} * a.inputs;
  const auto* const image = static_cast<const uint16_t*>(a.images) + n * a.height * image_row;
  const int64_t first_number = (int64_t{first} * a.stride - a.padding) * a.inputs;
  const int lead = static_cast<int>(first_number & (kUnit - 1));
  const int64_t begin = first_number - lead;  // a multiple of kUnit
  const int64_t first_row = int64_t{p} * a.stride - a.padding;
  constexpr int kStep = kInUnits ? kUnit : 1;
  const int of_row = tile.row_numbers() / kStep;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < tile.rows * of_row; i += kThreads) {
    const int k = i / of_row;
    const int64_t h = first_row + k, at = begin + int64_t{i - k * of_row} * kStep;
    const bool is_inside = h >= 0 && h < a.height && at >= 0 && at < image_row;
    if constexpr (kInUnits) {
      reinterpret_cast<uint4*>(numbers)[i] =
          is_inside ? *reinterpret_cast<const uint4*>(image + h * image_row + at)
                    : uint4{0, 0, 0, 0};
    } else {
      numbers[i] = is_inside ? image[h * image_row + at] : uint16_t{0};
    }
  }
  for (int column = static_cast<int>(threadIdx.x); column < a.columns; column += kThreads) {
    offsets[column] = OffsetOf(a, tile, column);
  }
  __syncthreads();

  const int units = a.columns / kUnit, pairs = (units + kPair - 1) / kPair;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int step = a.stride * a.inputs;
  const int row_step = tile.output_rows > 1 ? a.stride * tile.row_numbers() : 0;
  auto* const to = static_cast<uint4*>(a.windows) +
                   ((n * a.output_height + p) * a.output_width + first) * units;
  const int pieces = pairs * ((all_windows + kWarpWindows - 1) / kWarpWindows);
  for (int piece = warp; piece < pieces; piece += kThreads / kWarp) {
    const int of_windows = piece / pairs;
    const int unit = (piece - of_windows * pairs) * kPair + lane % kPair;
    const int i = of_windows * kWarpWindows + lane / kPair;
    if (unit >= units || i >= all_windows) continue;
    const int row = i / windows, q = i - row * windows;
    const uint16_t* const window = numbers + lead + row * row_step + q * step;
    const uint4 packed = reinterpret_cast<const uint4*>(offsets)[unit];
    const uint32_t of_pair[kUnit / 2] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t words[kUnit / 2];
#pragma unroll
    for (int j = 0; j < kUnit / 2; ++j) {
      const uint32_t low = of_pair[j] & 0xffffU, high = of_pair[j] >> 16;
      words[j] = (low == kNoNumber ? 0U : window[low]) |
                 (high == kNoNumber ? 0U : uint32_t{window[high]} << 16);
    }
    to[(int64_t{row} * a.output_width + q) * units + unit] = {words[0], words[1], words[2], words[3]};
  }
}

}  // namespace

cudaError_t LaunchWindows(cudaStream_t stream, const WindowsArguments& arguments) {
  const WindowTile tile = TileOf(arguments);
  const int64_t blocks = arguments.samples * tile.groups * tile.parts;
  const bool is_in_units = int64_t{arguments.width} * arguments.inputs % kUnit == 0 &&
                           reinterpret_cast<uintptr_t>(arguments.images) % sizeof(uint4) == 0;
  const auto numbers = static_cast<size_t>(arguments.columns) +
                       static_cast<size_t>(tile.rows) * static_cast<size_t>(tile.row_numbers());
  return Launch(is_in_units ? WindowsKernel<true> : WindowsKernel<false>,
                dim3(static_cast<unsigned>(blocks)), dim3(kThreads), numbers * sizeof(uint16_t),
                stream, arguments, tile);
}

}  // namespace stagecoach::kernels
