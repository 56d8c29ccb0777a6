#ifndef STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_PLAIN_CUH_
#define STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_PLAIN_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_seen.cuh"

// Attention without tensor cores, for any type and head size: FlashAttention (Dao et al. 2022) with
// sums of float32 products.
//
// A block *owns* the results of 64 positions of one head (for keys, of one group), queries or keys,
// and passes over the *others* in tiles. Scores are a matrix (own, others). Rows of both lie in
// shared memory as float32. A warp has whole rows of scores: its lanes form a grid of 4 down and 8
// across, and a lane has rows 4 apart and columns 8 apart. So four rows and eight columns of shared
// memory are read at once, each in a bank of its own, and a warp passes what it makes of its scores
// to no other warp.
//
// A head has D numbers; shared memory holds those of a *slice*: W/2 of its first half, and W/2 of
// its second, so that the two numbers of a rotated pair belong to one thread. If D exceeds W, a
// block has the results of one slice, for which it computes scores over all slices.
namespace stagecoach::kernels::plain_attention {

inline constexpr int kOwn = 64;
inline constexpr int kDown = 4, kAcross = 8;           // lanes of a warp
inline constexpr double kLogOfE = 1.4426950408889634;  // log2(e)

template <int W>
struct Tile {
  static constexpr int kOthers = W == 64 ? 64 : 32;
  static constexpr int kRows = W == 64 ? 4 : 2;       // of scores that a thread has
  static constexpr int kColumns = kOthers / kAcross;  // likewise
  static constexpr int kShare = W / kAcross;          // numbers of a row of results likewise
  static constexpr int kThreads = kOwn / kRows * kAcross;
  static constexpr int kBlocks = W == 64 ? 3 : 2;  // that a multiprocessor should hold
  // The pitch of rows in shared memory, which puts their quads into different banks.
  static constexpr int kPitch = W + 4;
  static constexpr int kWeightPitch = kOthers + 4;
  static constexpr int kOwnFloats = kOwn * kPitch, kOtherFloats = kOthers * kPitch;
  static constexpr int kWeightFloats = kOwn * kWeightPitch;
  static_assert(kWeightFloats <= kOtherFloats);
};

struct PlainArguments {
  AttentionArguments tensors;
  int half = 1;  // start of the second half of a head
  int slices = 1;
  bool vectors = false;  // whether all addresses and extents allow accesses of 16 bytes
};

// The numbers of a head in a slice: `length` numbers of either half, from `first` on.
template <int W>
struct Slice {
  __device__ Slice(const PlainArguments& args, int slice)
      : half(args.half), first(slice * (W / 2)) {
    const int size = static_cast<int>(args.tensors.head_size);
    length[0] = Clamp(half - first);
    length[1] = Clamp(size - half - first);
  }
  __device__ static int Clamp(int value) { return value < 0 ? 0 : value > W / 2 ? W / 2 : value; }

  // Returns the place in the head of the slice's number c; -1 if there is none.
  __device__ int At(int c) const {
    const int in_half = c % (W / 2);
    if (c < W / 2) return in_half < length[0] ? first + in_half : -1;
    return in_half < length[1] ? half + first + in_half : -1;
  }

  int half, first;
  int length[2];
};

// Rows of a head at consecutive positions.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
  __device__ T* row(int position) const { return data + position * stride; }
};

template <typename T, typename Pointer>
__device__ Rows<T> RowsOf(const HeadsOf<Pointer>& heads, const AttentionArguments& a, int64_t b,
                          int64_t h) {
  return {static_cast<T*>(heads.data) + b * a.positions * heads.stride + h * a.head_size,
          heads.stride};
}

// Returns the rows of a separate matrix (B, T, H, D).
template <typename T, typename Pointer>
__device__ Rows<T> RowsOf(Pointer data, const AttentionArguments& a, int64_t b, int64_t h) {
  return RowsOf<T>(HeadsOf<Pointer>{data, a.heads * a.head_size}, a, b, h);
}

// A lane's place: the first row of the block that its warp has, and the first that its thread has.
struct Lane {
  template <int W>
  __device__ static Lane Of(Tile<W>) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int warp_row = warp * kDown * Tile<W>::kRows;
    return {warp_row, warp_row + lane / kAcross, lane % kAcross};
  }
  int warp_row, row, column;
};

// Copies kCount rows from position `first` on to shared memory, with zeros beyond the end.
template <int W, int kCount, int N, typename T>
__device__ void CopyVectors(const Rows<const T>& from, int first, int positions,
                            const Slice<W>& slice, float* to) {
  constexpr int kVectors = W / N;                      // of a row
  constexpr int kStep = Tile<W>::kThreads / kVectors;  // rows between two of a thread
  constexpr int kRows = kCount / kStep;
  constexpr int kBatch = kRows < 4 ? kRows : 4;  // that a thread has in flight
  static_assert(kVectors * kStep == Tile<W>::kThreads && kRows % kBatch == 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / kVectors, column = thread % kVectors * N;
  const int at = slice.At(column);
  float* const target = to + row * Tile<W>::kPitch + column;
  for (int k = 0; k < kRows; k += kBatch) {
    Packed<T, N> batch[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int position = first + row + (k + j) * kStep;
      batch[j] = Packed<T, N>();
      if (position < positions && at >= 0) batch[j] = LoadPacked<T, N>(from.row(position) + at);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float* const numbers = target + (k + j) * kStep * Tile<W>::kPitch;
      float values[N];
      Unpack<T, N>(batch[j], values);
      constexpr int kQuad = N < 4 ? N : 4;
#pragma unroll
      for (int n = 0; n < N; n += kQuad) {
        float quad[kQuad];
#pragma unroll
        for (int e = 0; e < kQuad; ++e) quad[e] = values[n + e];
        StoreShared(numbers + n, quad);
      }
    }
  }
}

template <int W, int kCount, typename T>
__device__ void Copy(const PlainArguments& args, const Rows<const T>& from, int first,
                     const Slice<W>& slice, float* to) {
  const int positions = static_cast<int>(args.tensors.positions);
  if (args.vectors) {
    CopyVectors<W, kCount, kVectorWidth<T>>(from, first, positions, slice, to);
  } else {
    CopyVectors<W, kCount, 1>(from, first, positions, slice, to);
  }
}
template <int W, typename T>
__device__ void CopyOwn(const PlainArguments& args, const Rows<const T>& from, int first,
                        const Slice<W>& slice, float* to) {
  Copy<W, kOwn>(args, from, first, slice, to);
}
template <int W, typename T>
__device__ void CopyOthers(const PlainArguments& args, const Rows<const T>& from, int first,
                           const Slice<W>& slice, float* to) {
  Copy<W, Tile<W>::kOthers>(args, from, first, slice, to);
}

template <int W>
using Scores = float[Tile<W>::kRows][Tile<W>::kColumns];
template <int W>
using Sums = float[Tile<W>::kRows][Tile<W>::kShare];

// Computes scores += own rows times others, over the numbers of a slice.
template <int W>
__device__ void AddProducts(const Slice<W>& slice, const Lane& lane, const float* own,
                            const float* others, Scores<W>& scores) {
  constexpr int kRows = Tile<W>::kRows, kColumns = Tile<W>::kColumns, kPitch = Tile<W>::kPitch;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const rows = own + lane.row * kPitch + half * (W / 2);
    const float* const columns = others + lane.column * kPitch + half * (W / 2);
#pragma unroll 1  // one turn has 32 or 128 products: unrolling costs registers
    for (int d = 0; d < slice.length[half]; d += 4) {
      float a[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) Load(rows + i * kDown * kPitch + d, a[i]);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        float b[4];
        Load(columns + j * kAcross * kPitch + d, b);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) scores[i][j] += a[i][e] * b[e];
        }
      }
    }
  }
}

// Turns products q k into shares of the cap.
template <int W>
__device__ void Cap(float tanh_scale, Scores<W>& scores) {
#pragma unroll
  for (int i = 0; i < Tile<W>::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tile<W>::kColumns; ++j) {
      scores[i][j] = CapShare(scores[i][j] * tanh_scale);
    }
  }
}

// Computes sums += weights times the rows of others, of which there are `count`. The lanes of a
// warp exchange their parts of its rows through `weights` (own, others).
template <int W>
__device__ void AddWeighted(const Lane& lane, const Scores<W>& own_weights, const float* others,
                            int count, float* weights, Sums<W>& sums) {
  constexpr int kRows = Tile<W>::kRows, kWeightPitch = Tile<W>::kWeightPitch;
  float* const rows = weights + lane.row * kWeightPitch;
  __syncwarp();  // the old contents have been read
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < Tile<W>::kColumns; ++j) {
      rows[i * kDown * kWeightPitch + lane.column + j * kAcross] = own_weights[i][j];
    }
  }
  __syncwarp();
  const float* const numbers = others + lane.column * 4;
#pragma unroll 1
  for (int n = 0; n < count; n += 4) {
    float weight[kRows][4];
#pragma unroll
    for (int i = 0; i < kRows; ++i) Load(rows + i * kDown * kWeightPitch + n, weight[i]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int c = 0; c < Tile<W>::kShare; c += 4) {
        float b[4];
        Load(numbers + (n + k) * Tile<W>::kPitch + c * kAcross, b);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][c + e] += weight[i][k] * b[e];
        }
      }
    }
  }
}

// Returns how many others a tile has that begins at `first`.
template <int W>
__device__ int Count(int first, int end) {
  return end - first < Tile<W>::kOthers ? end - first : Tile<W>::kOthers;
}

// Stores four neighboring numbers of a half of a head, from `at` on, as far as they exist.
template <typename T>
__device__ void StoreQuad(bool vectors, const float (&values)[4], int at, int size, T* to) {
  if (vectors) {
    if (at < size) Store(to + at, values);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (at + e < size) to[at + e] = FromFloat<T>(values[e]);
  }
}

// Stores a slice of a row of results, which is `scale` times the sums; rotated back if there are
// `turns` for its position.
template <int W, typename T>
__device__ void StoreRow(const PlainArguments& args, int slice, const Lane& lane, float scale,
                         const float (&sums)[Tile<W>::kShare], const float2* turns, T* to) {
  constexpr int kHalfShare = Tile<W>::kShare / 2;
#pragma unroll
  for (int c = 0; c < kHalfShare; c += 4) {
    const int at = slice * (W / 2) + c * kAcross + lane.column * 4;
    float a[4], b[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      a[e] = scale * sums[c + e];
      b[e] = scale * sums[kHalfShare + c + e];
      if (turns != nullptr && at + e < args.half) {
        const float2 turn = turns[at + e];
        const float turned = a[e] * turn.x + b[e] * turn.y;
        b[e] = b[e] * turn.x - a[e] * turn.y;
        a[e] = turned;
      }
    }
    StoreQuad(args.vectors, a, at, args.half, to);
    StoreQuad(args.vectors, b, at, static_cast<int>(args.tensors.head_size) - args.half,
              to + args.half);
  }
}

__device__ inline const float2* TurnsOf(const AttentionArguments& a, int position) {
  return a.turns == nullptr ? nullptr : a.turns + position * (a.head_size / 2);
}

// The work of a block: tile `tile` of the positions of a head, and `heads`, its heads within a
// sample.
struct Work {
  __device__ Work(const AttentionArguments& a, int64_t heads) {
    const int64_t tiles = (a.positions + kOwn - 1) / kOwn;
    const int64_t all = static_cast<int64_t>(blockIdx.x) / tiles;  // heads, of all samples
    tile = static_cast<int>(static_cast<int64_t>(blockIdx.x) - all * tiles);
    last_tile = static_cast<int>(tiles) - 1;
    b = all / heads;
    h = all - b * heads;
    slice = static_cast<int>(blockIdx.y);
  }
  int64_t b, h;
  int tile, last_tile, slice;
};

template <int W>
inline constexpr size_t kQueriesBytes = sizeof(float) *
                                        (2 * Tile<W>::kOwnFloats + 2 * Tile<W>::kOtherFloats);
template <int W>
inline constexpr size_t kKeysBytes = kQueriesBytes<W> + sizeof(float) * (Tile<W>::kWeightFloats +
                                                                         3 * Tile<W>::kOthers);

// Determines whether a block of the current GPU may have as much shared memory as the wider kernels
// need: before compute capability 9.0, only GPUs for data centers allow it.
inline cudaError_t GivesWide(bool& gives) {
  int gpu = 0, bytes = 0;
  cudaError_t error = cudaGetDevice(&gpu);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu);
  gives = static_cast<size_t>(bytes) >= kKeysBytes<128>;
  return error;
}

// Calls `launch(element, width, restricted)` with the type and, as constants, W and whether the
// arguments are restricted.
template <typename LaunchFunction>
cudaError_t Dispatch(ElementType type, const AttentionArguments& a, LaunchFunction launch) {
  bool is_wide = a.head_size > 64;
  if (is_wide) {
    const cudaError_t error = GivesWide(is_wide);
    if (error != cudaSuccess) return error;
  }
  const auto with_width = [&](auto element) {
    const auto with_both = [&](auto width) {
      return a.is_restricted() ? launch(element, width, std::true_type())
                               : launch(element, width, std::false_type());
    };
    return is_wide ? with_both(std::integral_constant<int, 128>())
                   : with_both(std::integral_constant<int, 64>());
  };
  return type == ElementType::kFloat32 ? with_width(float{}) : with_width(__nv_bfloat16{});
}

// Returns the arguments of kernels with slices of W numbers.
inline PlainArguments ArgumentsOf(const AttentionArguments& a, int element_bytes, int width) {
  const int size = static_cast<int>(a.head_size);
  PlainArguments args{.tensors = a};
  // Rotary pairs need both halves; without them, the second half begins at a vector boundary.
  const int middle = ((size + 1) / 2 + 7) / 8 * 8;
  args.half = a.turns != nullptr ? size / 2 : std::min(middle, size);
  args.slices = std::max(1, (args.half + width / 2 - 1) / (width / 2));
  const int vector = 16 / element_bytes;
  const auto fits = [&](int64_t extent) { return extent % vector == 0; };
  args.vectors =
      fits(size) && fits(args.half) && fits(a.q.stride) && fits(a.k.stride) && fits(a.v.stride) &&
      fits(a.dq.stride) && fits(a.dk.stride) && fits(a.dv.stride) &&
      AlignedForVectors(a.q.data, a.k.data, a.v.data, a.y, a.dy, a.dq.data, a.dk.data, a.dv.data);
  return args;
}

inline dim3 GridOf(const AttentionArguments& a, int64_t heads, int slices) {
  const int64_t tiles = (a.positions + kOwn - 1) / kOwn;
  return dim3(static_cast<unsigned>(a.samples * heads * tiles), static_cast<unsigned>(slices));
}

}  // namespace stagecoach::kernels::plain_attention

#endif  // STAGECOACH_KERNELS_CUDA_OPS_ATTENTION_ATTENTION_PLAIN_CUH_
