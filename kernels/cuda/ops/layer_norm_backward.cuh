#ifndef STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_BACKWARD_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_BACKWARD_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/team_rows.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/layer_norm_kernels.h"

// What the kernels of layer_norm_backward.cu have in common: the terms of the gradients, and how
// sums of rows and columns are formed. kCenters is true in those for both norms.
namespace stagecoach::kernels {

struct RowStatistics {
  float mean = 0.0F, rstd = 0.0F;
};
template <bool kCenters>
__device__ RowStatistics StatisticsAt(const float* row) {
  if constexpr (kCenters) return {row[0], row[1]};
  return {0.0F, row[0]};
}
__device__ inline RowStatistics StatisticsOf(const LayerNormBackwardArguments& a, int64_t r) {
  return a.centers ? StatisticsAt<true>(a.statistics + 2 * r)
                   : StatisticsAt<false>(a.statistics + r);
}

// N columns of a row as they lie in memory.
template <typename T, int N>
struct Operands {
  Packed<T, N> dy, x, addend;
};

template <typename T, int N, bool kAddend>
struct OperandSource {
  const T* dy;
  const T* x;
  const T* addend;

  // Reads from element `offset` of the matrices on.
  __device__ OperandSource(const LayerNormBackwardArguments& a, int64_t offset)
      : dy(static_cast<const T*>(a.dy) + offset),
        x(static_cast<const T*>(a.x) + offset),
        addend(kAddend ? static_cast<const T*>(a.addend) + offset : nullptr) {}

  __device__ void operator()(int64_t c, Operands<T, N>& operands) const {
    operands.dy = LoadPacked<T, N>(dy + c);
    operands.x = LoadPacked<T, N>(x + c);
    if constexpr (kAddend) operands.addend = LoadPacked<T, N>(addend + c);
  }
};

template <typename T, int N>
struct GammaSource {
  const T* gamma;

  __device__ void operator()(int64_t c, Packed<T, N>& to) const {
    to = LoadPacked<T, N>(gamma + c);
  }
};

// The terms of the gradients of N columns: dy, xhat and g = dy gamma, and how they are combined.
template <typename T, int N, bool kCenters = true>
struct Terms {
  float dy[N], xhat[N];

  Terms() = default;
  __device__ Terms(const Operands<T, N>& operands, RowStatistics statistics) {
    float x[N];
    Unpack<T, N>(operands.dy, dy);
    Unpack<T, N>(operands.x, x);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kCenters) x[i] = __fadd_rn(x[i], -statistics.mean);
      xhat[i] = __fmul_rn(x[i], statistics.rstd);
    }
  }

  // Adds to the row's sums of g and of g xhat.
  __device__ void AddTo(SumPair& sums, Packed<T, N> gamma) const {
    float factor[N];
    Unpack<T, N>(gamma, factor);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = __fmul_rn(dy[i], factor[i]);
      if constexpr (kCenters) sums.first = __fadd_rn(sums.first, g);
      sums.second = __fmaf_rn(g, xhat[i], sums.second);
    }
  }

  // Adds to the sums of the columns.
  __device__ void AddTo(float (&dgamma)[N], float (&dbeta)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dgamma[i] = __fmaf_rn(dy[i], xhat[i], dgamma[i]);
      if constexpr (kCenters) dbeta[i] = __fadd_rn(dbeta[i], dy[i]);
    }
  }

  // `means` are those of the row's g and g xhat.
  template <bool kAddend>
  __device__ void StoreDx(Packed<T, N> packed_addend, Packed<T, N> gamma, SumPair means, float rstd,
                          T* dx) const {
    float factor[N], addend[N], values[N];
    Unpack<T, N>(gamma, factor);
    if constexpr (kAddend) Unpack<T, N>(packed_addend, addend);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = __fmul_rn(dy[i], factor[i]);
      const float centered = kCenters ? __fadd_rn(g, -means.first) : g;
      const float difference = __fmaf_rn(-xhat[i], means.second, centered);
      if constexpr (kAddend) {
        values[i] = __fmaf_rn(rstd, difference, addend[i]);
      } else {
        values[i] = __fmul_rn(rstd, difference);
      }
    }
    Store(dx, values);
  }
};

// Returns the means of g and g xhat from a thread's sums; `inverse` is 1 / C. A team has any number
// of warps here, a block any number of teams, and all of them call this together. `scratch`,
// kMaxWarps values, must differ from the previous call's.
template <bool kCenters = true>
__device__ SumPair TeamMeans(SumPair sums, const LayerNormBackwardArguments& a, float inverse,
 SumPair* scratch) {
  using Sums = std::conditional_t<kCenters, SumPair, float>;
  const auto add = [](Sums left, Sums right) { return left + right; };
  Sums own;
  if constexpr (kCenters) {
    own = sums;
  } else {
    own = sums.second;
  }
  own = WarpReduce(own, add);
  if (blockDim.x != kWarp) {
    const unsigned warps = blockDim.x / kWarp;
    Sums* const of_team = reinterpret_cast<Sums*>(scratch) + threadIdx.y * warps;
    if (threadIdx.x % kWarp == 0) of_team[threadIdx.x / kWarp] = own;
    __syncthreads();
    own = of_team[0];
#pragma unroll 4
    for (unsigned warp = 1; warp < warps; ++warp) own = own + of_team[warp];
  }
  if constexpr (kCenters) {
    return {a.centers ? __fmul_rn(own.first, inverse) : 0.0F, __fmul_rn(own.second, inverse)};
  } else {
    return {0.0F, __fmul_rn(own, inverse)};
  }
}

// Gamma, and rows on their way, in shared memory: the next ones that a team works on. A thread
// copies and reads its own kHeld vectors, so that no barrier is needed. Registers would hold fewer
// rows.
template <typename T, int N, int kHeld, bool kAddend>
class RowRing {
 public:
  // They fit into the 99 KiB that a block may have on all GPUs since compute capability 8.0.
  static constexpr int kRows = sizeof(T) == 2 ? 3 : 2;

  static size_t Bytes(unsigned threads) { return size_t{kVectors} * threads * kBytes; }

  // Starts to copy the team's first rows of those that begin at element `begin`, of which there are
  // `rows`. `memory` has Bytes.
  __device__ RowRing(const LayerNormBackwardArguments& a, int64_t begin, int rows, void* memory)
      : args_(a),
        rows_(rows),
        row_(static_cast<int>(threadIdx.y)),
        offset_(begin + static_cast<int>(threadIdx.y) * a.features),
        memory_(static_cast<Vector*>(memory) + threadIdx.y * blockDim.x + threadIdx.x) {
#pragma unroll
    for (int i = 0; i < kRows - 1; ++i) Start();
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      if (!Has(k)) continue;
      const Vector gamma = LoadPacked<T, N>(static_cast<const T*>(a.gamma) + Column(k));
      if constexpr (kKeepsGamma) {
        *At(kRows, 0, k) = gamma;
      } else {
        gamma_[k] = gamma;
      }
    }
  }

  // Returns once the next row is there, whose vectors the functions below then return.
  __device__ void Next() {
    Start();
    WaitForCopies<kRows - 1>();
    read_ = (read_ + 1) % kRows;
  }
  // Returns the row's first element, counted as `begin` is.
  __device__ int64_t offset() const { return offset_ - kRows * Step(); }
  __device__ bool Has(int k) const { return Column(k) < static_cast<int>(args_.features); }
  __device__ static int Column(int k) {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * N;
  }
  __device__ Operands<T, N> operands(int k) const { return {*At(read_, 0, k), *At(read_, 1, k), {}}; }
  __device__ Packed<T, N> addend(int k) const { return *At(read_, 2, k); }
  __device__ Packed<T, N> gamma(int k) const {
    return kKeepsGamma ? *At(kRows, 0, k) : gamma_[k];
  }

 private:
  using Vector = Packed<T, N>;
  static constexpr int kOperands = kAddend ? 3 : 2;
  // In registers, bfloat16 would be widened once, and take twice as many.
  static constexpr bool kKeepsGamma = sizeof(T) == 2;
  static constexpr int kBytes = sizeof(Vector);
  static constexpr int kVectors = (kRows * kOperands + (kKeepsGamma ? 1 : 0)) * kHeld;
  static_assert(kBytes == 16);

  __device__ Vector* At(int slot, int operand, int k) const {
    return memory_ + ((slot * kOperands + operand) * kHeld + k) *
                         static_cast<int>(blockDim.x * blockDim.y);
  }
  __device__ void Start() {
    if (row_ < rows_) {
      const OperandSource<T, N, kAddend> source(args_, offset_);
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        const int c = Column(k);
        if (!Has(k)) continue;
        CopyAsync(At(written_, 0, k), source.dy + c, true);
        CopyAsync(At(written_, 1, k), source.x + c, true);
        if constexpr (kAddend) CopyAsync(At(written_, 2, k), source.addend + c, true);
      }
    }
    CommitCopies();
    written_ = (written_ + 1) % kRows;
    row_ += static_cast<int>(blockDim.y);
    offset_ += Step();
  }
  __device__ int64_t Step() const { return args_.features * static_cast<int>(blockDim.y); }

  const LayerNormBackwardArguments& args_;
  const int rows_;
  int row_;
  int64_t offset_;
  Vector* const memory_;
  Vector gamma_[kHeld];  // unless shared memory has it
  int written_ = 0, read_ = kRows - 1;
};

// Adds up the teams' sums of each column of a block, in their order, into `to`, which has `columns`
// of their columns.
template <int N, int kHeld>
__device__ void WriteBlockSums(const float (&own)[kHeld][N], int columns, float* to) {
  constexpr int kQuad = N == 1 ? 1 : kVectorWidth<float>;
  const int width = static_cast<int>(blockDim.x) * kHeld * N;
  float* const sums = SharedMemory<float>();  // (teams, width)
  __syncthreads();                            // the old contents have been read
#pragma unroll
  for (int k = 0; k < kHeld; ++k) {
    float* const at = sums + static_cast<int>(threadIdx.y) * width +
                      static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * N;
#pragma unroll
    for (int i = 0; i < N; i += kQuad) {
      float quad[kQuad];
#pragma unroll
      for (int j = 0; j < kQuad; ++j) quad[j] = own[k][i + j];
      StoreShared(at + i, quad);
    }
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); j < columns;
       j += static_cast<int>(blockDim.x * blockDim.y)) {
    float sum = sums[j];
    for (unsigned team = 1; team < blockDim.y; ++team) {
      sum = __fadd_rn(sum, sums[static_cast<int>(team) * width + j]);
    }
    to[j] = sum;
  }
}

// Must be called by all threads of the block that has block `block` of the rows.
template <int N, int kHeld>
__device__ void WriteBlockSums(const LayerNormBackwardArguments& a, int64_t block, int64_t first_column,
                               int64_t columns, const float (&dgamma)[kHeld][N],
                               const float (&dbeta)[kHeld][N]) {
  float* const to = a.workspace + block * (a.centers ? 2 : 1) * a.features + first_column;
  WriteBlockSums(dgamma, static_cast<int>(columns), to);
  if (a.centers) WriteBlockSums(dbeta, static_cast<int>(columns), to + a.features);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LAYER_NORM_BACKWARD_CUH_
