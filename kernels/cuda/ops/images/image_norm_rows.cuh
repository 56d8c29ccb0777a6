#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_ROWS_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_ROWS_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/images/image_norm_kernels.h"

// The division of images whose channels are last, a matrix of N A rows and C columns, among blocks
// of threads. A *segment* has statistics of its own: it is all rows or, with groups, those of a
// sample. Its rows are cut into blocks, its columns into pieces, and a block of threads has one of
// both: a thread always has the same columns, those of one 16-byte access, in every blockDim.y-th
// row. All of this depends on the extents and the type alone, and so does the order of sums.
//
// Products and sums are rounded as written (__fmul_rn and the like): a column has the same bits
// whether or not it is read together with its neighbors.
namespace stagecoach::kernels {

inline constexpr int kImageThreads = 256;
inline constexpr int kImageBlocksAtOnce = 3;  // on a multiprocessor
inline constexpr int kImageBatch = 4;         // rows of a thread in one step
// Three blocks for each multiprocessor of a large GPU, which has room for them at once.
inline constexpr int kMostImageBlocks = 384;

struct ImageNormLayout {
  int64_t segments = 1;
  int segment_rows = 1;
  int blocks = 1;  // of rows, in each segment
  int block_rows = 1;
  int columns = 1;  // C
  int pieces = 1;
  int groups = 0;
  int planes = 1;  // columns of a set
  dim3 threads;

  __host__ __device__ int64_t partials() const { return segments * blocks; }
  __host__ __device__ int64_t sets() const { return groups == 0 ? columns : segments * groups; }
  dim3 grid() const { return dim3(static_cast<unsigned>(partials() * pieces)); }
  // Returns the size of two float32 for each column of a block of threads in each of its rows.
  size_t shared_bytes(ElementType type) const {
    return size_t{2} * threads.x * threads.y * Share(type) * sizeof(float);
  }
  // Returns the number of columns of a thread.
  static unsigned Share(ElementType type) { return type == ElementType::kFloat32 ? 4 : 8; }
};

inline ImageNormLayout LayOutImages(ElementType type, const ImageNormExtents& extents) {
  constexpr int64_t kWidest = 32;  // threads along a row
  const int64_t share = ImageNormLayout::Share(type);
  ImageNormLayout layout;
  layout.columns = static_cast<int>(extents.channels);
  layout.groups = static_cast<int>(extents.groups);
  int64_t rows = extents.samples * extents.area;
  if (extents.groups != 0) {
    layout.segments = extents.samples;
    rows = extents.area;
    layout.planes = static_cast<int>(extents.channels / extents.groups);
  }
  const int64_t vectors = (extents.channels + share - 1) / share;
  const int64_t pieces = (vectors + kWidest - 1) / kWidest;
  const int64_t across = (vectors + pieces - 1) / pieces;
  const int64_t down = std::min(kImageThreads / across, (rows + kImageBatch - 1) / kImageBatch);
  const int64_t step = down * kImageBatch;
  const int64_t most = std::max<int64_t>(1, kMostImageBlocks / (layout.segments * pieces));
  const int64_t blocks = std::clamp<int64_t>(rows / step, 1, most);
  const int64_t block_rows = (rows + blocks * step - 1) / (blocks * step) * step;
  layout.segment_rows = static_cast<int>(rows);
  layout.block_rows = static_cast<int>(block_rows);
  layout.blocks = static_cast<int>((rows + block_rows - 1) / block_rows);
  layout.pieces = static_cast<int>(pieces);
  layout.threads = dim3(static_cast<unsigned>(across), static_cast<unsigned>(down));
  return layout;
}

// Returns how many rows a block of a segment has.
__device__ inline int RowsOfBlock(const ImageNormLayout& layout, int block) {
  const int left = layout.segment_rows - block * layout.block_rows;
  return left < layout.block_rows ? left : layout.block_rows;
}

// Returns the set of a column.
__device__ inline int64_t SetOf(const ImageNormLayout& layout, int64_t segment, int column) {
  return layout.groups == 0 ? column : segment * layout.groups + column / layout.planes;
}

// The part of a thread, read in vectors of N columns.
template <typename T, int N>
class ImagePart {
 public:
  static constexpr int kHeld = kVectorWidth<T> / N;
  // The operands of one row, as they lie in memory.
  struct Row {
    Packed<T, N> vectors[kHeld];
  };

  __device__ explicit ImagePart(const ImageNormLayout& layout) : layout_(layout) {
    const auto index = static_cast<int64_t>(blockIdx.x);
    partial_ = index / layout.pieces;
    segment_ = partial_ / layout.blocks;
    const int block = static_cast<int>(partial_ - segment_ * layout.blocks);
    rows_ = RowsOfBlock(layout, block);
    const int width = static_cast<int>(blockDim.x) * kHeld * N;
    first_column_ = static_cast<int>(index - partial_ * layout.pieces) * width;
    const int left = layout.columns - first_column_;
    columns_ = left < width ? left : width;
    const int64_t row = segment_ * layout.segment_rows + block * layout.block_rows;
    begin_ = row * layout.columns + first_column_;
  }

  __device__ int64_t segment() const { return segment_; }
  __device__ int rows() const { return rows_; }
  __device__ int columns() const { return columns_; }  // of the block of threads
  __device__ int first_column() const { return first_column_; }
  // Returns the offset of the block's sums in an array (segments, blocks, ...).
  __device__ int64_t partial() const { return partial_; }
  // Returns the column at which the thread's vector number k begins, among those of the block of
  // threads.
  __device__ static int Place(int k) {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * N;
  }
  __device__ bool Has(int k) const { return Place(k) < columns_; }
  // Returns the same among all columns.
  __device__ int Column(int k) const { return first_column_ + Place(k); }

  // Returns how many rows the threads with that threadIdx.y have in all.
  __device__ int RowsOf(int y) const {
    const int threads = static_cast<int>(blockDim.y);
    return rows_ / threads + (y < rows_ % threads ? 1 : 0);
  }

  // Calls visit(first), `first` being the number of a row of the block of threads, for every step
  // of kBatch rows that the thread has: rows first, first + blockDim.y and so on. It walks
  // backwards, because what the previous kernel read last may still be in the cache.
  template <int kBatch, typename Visit>
  __device__ void ForEachStep(Visit visit) const {
    const int step = kBatch * static_cast<int>(blockDim.y);
    for (int first = static_cast<int>(threadIdx.y); first < rows_; first += step) visit(first);
  }
  template <int kBatch, typename Visit>
  __device__ void ForEachStepBackwards(Visit visit) const {
    const int step = kBatch * static_cast<int>(blockDim.y);
    const int last = (rows_ - 1) / step * step + static_cast<int>(threadIdx.y);
    for (int first = last; first >= 0; first -= step) visit(first);
  }
  // Returns row number j of a step.
  __device__ static int RowOf(int first, int j) { return first + j * static_cast<int>(blockDim.y); }

  // Reads the rows of a step that exist; the others become 0.
  template <int kBatch>
  __device__ void Read(const void* matrix, int first, Row (&rows)[kBatch]) const {
    const T* const from = static_cast<const T*>(matrix) + begin_;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        rows[j].vectors[k] = RowOf(first, j) < rows_ && Has(k)
                                 ? LoadPacked<T, N>(from + Offset(RowOf(first, j), k))
                                 : Packed<T, N>{};
      }
    }
  }
  __device__ void Write(void* matrix, int row, int k, const float (&values)[N]) const {
    if (row < rows_ && Has(k)) Store(static_cast<T*>(matrix) + begin_ + Offset(row, k), values);
  }

  // Reads the elements for the columns from an array of the sets' statistics, or from gamma and
  // beta.
  __device__ void ReadOfSets(const float* array, int k, float (&to)[N]) const {
    if (!Has(k)) return;
    if (layout_.groups == 0) {
      ReadColumns(array + Column(k), to);
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = array[SetOf(layout_, segment_, Column(k) + i)];
  }
  __device__ void ReadOfChannels(const void* array, int k, float (&to)[N]) const {
    if (Has(k)) Load(static_cast<const T*>(array) + Column(k), to);
  }

 private:
  __device__ int64_t Offset(int row, int k) const {
    return static_cast<int64_t>(row) * layout_.columns + Place(k);
  }
  __device__ static void ReadColumns(const float* from, float (&to)[N]) {
    constexpr int kQuad = N == 1 ? 1 : kVectorWidth<float>;
#pragma unroll
    for (int i = 0; i < N; i += kQuad) {
      float quad[kQuad];
      Load(from + i, quad);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) to[i + j] = quad[j];
    }
  }

  const ImageNormLayout& layout_;
  int64_t segment_, partial_;
  int64_t begin_;  // offset of the first column of the block's first row
  int rows_, first_column_, columns_;
};

__device__ inline float RstdOf(float variance, float epsilon) {
  return 1.0F / sqrtf(__fadd_rn(variance, epsilon));
}

template <typename T>
__device__ inline float RoundedTo(float value) {
  return ToFloat(FromFloat<T>(value));
}

// Adds a set's mean and unbiased variance to the sums of micro-batches, or begins these.
__device__ inline void CollectStatistics(float mean, float variance, float unbiased,
                                         bool accumulate, float& to_mean, float& to_variance) {
  const float corrected = __fmul_rn(variance, unbiased);
  to_mean = accumulate ? __fadd_rn(to_mean, mean) : mean;
  to_variance = accumulate ? __fadd_rn(to_variance, corrected) : corrected;
}

// Returns the norm, which the backward pass must recompute to the same bits, with scale = gamma
// rstd.
__device__ inline float Normalized(float x, float mean, float scale, float beta) {
  return __fmaf_rn(__fadd_rn(x, -mean), scale, beta);
}

// Columns of an array (rows, C), or of several, are added up by blocks of kMergedColumns by
// blockDim.y threads, a power of two.
inline constexpr int kMergedColumns = 8;
inline constexpr int kMostMergingTeams = 64;
inline dim3 MergingThreads(int64_t rows) {
  unsigned teams = 1;
  while (teams < std::min<int64_t>(rows, kMostMergingTeams)) teams *= 2;
  return {kMergedColumns, teams};
}
inline dim3 MergingGrid(int columns) {
  return dim3(static_cast<unsigned>((columns + kMergedColumns - 1) / kMergedColumns));
}
// The number of elements per thread in the sums of teams (team_rows.cuh).
inline constexpr int64_t kMergedOfThread = 8;

inline size_t MergingBytes(const dim3& threads) {
  return size_t{threads.x} * threads.y * 2 * sizeof(float);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_ROWS_CUH_
