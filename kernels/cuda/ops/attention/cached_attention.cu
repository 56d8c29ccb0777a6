#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/cached_attention_kernels.h"
#include "kernels/cuda/ops/attention/cached_attention_parts.cuh"

// Reading the cache dominates the time: so a block reads its part of a kv head once, for up to
// kMaxQueries queries, those of a group and of several rows. Queries of a kv head are numbered row
// by row. The steps of a block share its registers and its shared memory, hence one long class.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxQueries = 8;  // of a block
constexpr int kTile = 64;       // positions whose scores exist at a time
constexpr int kTeam = 4;        // threads that compute a score together
constexpr int kTeams = kThreads / kTeam;
constexpr int kKeys = kTile / kTeams;  // of a team in a tile
constexpr int kInFlight = 4;           // vectors of each key, or values, that a thread has in
                                       // flight
// This many blocks keep a GPU of 132 multiprocessors busy with several on each.
constexpr int64_t kBlocks = 512;

static_assert(kThreads == kMaxCachedVectors);
static_assert(kTile == 2 * kWarp && kTile == kKeys * kTeams);

// Divides the positions by the extents alone, so that there are about kBlocks blocks if that many
// have work to do.
CachedAttentionParts PlainPartsOf(const CachedAttentionArguments& a) {
  const auto quotient = [](int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; };
  const int64_t queries = a.rows * (a.heads / a.kv_heads);
  CachedAttentionParts parts;
  while (parts.queries < kMaxQueries && parts.queries < queries) parts.queries *= 2;
  parts.query_tiles = quotient(queries, parts.queries);
  const int64_t most = std::max<int64_t>(1, kBlocks / (a.kv_heads * parts.query_tiles));
  const int64_t positions = a.seen_positions();
  parts.positions = quotient(quotient(positions, most), kTile) * kTile;
  parts.count = quotient(positions, parts.positions);
  return parts;
}

CachedAttentionParts PartsOf(ElementType type, const CachedAttentionArguments& a) {
  return FitsCachedAttentionTiles(type, a) ? CachedAttentionTileParts(a) : PlainPartsOf(a);
}

// The shared memory of a block.
template <int N, int kQueries>
struct BlockMemory {
  static constexpr int kScratchFloats = kThreads * N * kQueries;
  static size_t Bytes(int64_t head_size) {
    return static_cast<size_t>(kQueries * (head_size + kTile + 4) + kScratchFloats) * sizeof(float);
  }
  __device__ explicit BlockMemory(int64_t head_size)
      : queries(SharedMemory<float>()),
        weights(queries + kQueries * head_size),
        largest(weights + kQueries * kTile),
        sum(largest + kQueries),
        factor(sum + kQueries),
        last(reinterpret_cast<int*>(factor + kQueries)),
        scratch(factor + 2 * kQueries) {}

  float* queries;  // (kQueries, D), scaled and rotated
  float* weights;  // (kQueries, kTile): scores, then weights
  float* largest;  // score so far
  float* sum;      // of weights so far
  float* factor;   // by which to multiply earlier weights
  int* last;       // position that a query sees; -1: there is no such query
  float* scratch;  // rotations of the rows, (kQueries, D/2) pairs; in the end sums of all threads
};

// A block has part blockIdx.x of the positions, kv head blockIdx.y, and tile blockIdx.z of its
// queries. Windows and caps are known if kRestricted.
template <typename T, int N, int kQueries, bool kRestricted>
class PartBlock {
 public:
  __device__ PartBlock(const CachedAttentionArguments& a, int64_t part_positions)
      : a_(a),
        memory_(a.head_size),
        D_(static_cast<int>(a.head_size)),
        vectors_(D_ / N),
        group_(static_cast<int>(a.heads / a.kv_heads)),
        first_(*a.first_position),
        first_query_(static_cast<int64_t>(blockIdx.z) * kQueries),
        first_row_(first_query_ / group_),
        begin_(blockIdx.x * part_positions),
        keys_(static_cast<T*>(a.cache) + blockIdx.y * a.positions * D_),
        values_(keys_ + a.kv_heads * a.positions * D_) {
    const int64_t last_row = min((first_query_ + kQueries - 1) / group_, a.rows - 1);
    rows_ = static_cast<int>(last_row - first_row_) + 1;
    if constexpr (kRestricted) begin_ += FirstSeen(0);
    end_ = min(begin_ + part_positions, min(first_ + last_row + 1, a.positions));
    if constexpr (kRestricted) begin_ = max(begin_, FirstSeen(first_row_));
  }

  __device__ bool has_positions() const { return begin_ < end_; }

  __device__ void Run() {
    if (a_.turns) {
      FindTurns();
      __syncthreads();
    }
    LoadQueries();
    AppendPositions();
    __syncthreads();
    float sums[kQueries][N] = {};
    for (int64_t tile = begin_; tile < end_; tile += kTile) {
      const int count = static_cast<int>(min(end_ - tile, static_cast<int64_t>(kTile)));
      Packed<T, N> values[kInFlight];  // they arrive while scores are computed
      AskForValues(tile, count, 0, values);
      FormScores(tile, count);
      __syncthreads();
      FormWeights();
      __syncthreads();
      AddValues(tile, count, values, sums);
      __syncthreads();
    }
    AddUpThreads(sums);
  }

 private:
  __device__ int64_t FirstSeen(int64_t row) const {
    return FirstSeenBy(a_, first_ + row);
  }
  __device__ int64_t RowOf(int q) const { return (first_query_ + q) / group_; }
  __device__ int64_t HeadOf(int q) const {
    return static_cast<int64_t>(blockIdx.y) * group_ + (first_query_ + q) % group_;
  }
  __device__ const T* Part(int64_t row, int64_t part) const {
    return static_cast<const T*>(a_.qkv) + (row * (a_.heads + 2 * a_.kv_heads) + part) * D_;
  }
  __device__ float2* Turns() const { return reinterpret_cast<float2*>(memory_.scratch); }

  __device__ void FindTurns() const {
    const int half = D_ / 2;
    for (int i = static_cast<int>(threadIdx.x); i < rows_ * half; i += kThreads) {
      Turns()[i] = TurnOf(a_, first_ + first_row_ + i / half, i % half);
    }
  }

  __device__ void LoadQueries() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kQueries) {
      const int64_t position = first_ + RowOf(thread);
      const bool exists = RowOf(thread) < a_.rows && position < a_.positions;
      memory_.last[thread] = exists ? static_cast<int>(position) : -1;
      memory_.largest[thread] = -FLT_MAX;  // finite, so that differences are not NaN
      memory_.sum[thread] = 0.0F;
    }
    const int half = D_ / 2;
    const int pieces = a_.turns ? half : D_;
    for (int i = thread; i < kQueries * pieces; i += kThreads) {
      const int q = i / pieces, d = i % pieces;
      float* const query = memory_.queries + q * D_;
      const int64_t row = RowOf(q);
      const bool exists = row < a_.rows;
      const T* const from = Part(exists ? row : 0, HeadOf(q));
      if (!a_.turns) {
        query[d] = exists ? a_.scale * ToFloat(from[d]) : 0.0F;
        continue;
      }
      const float2 turn = exists ? Turns()[(row - first_row_) * half + d] : float2{0.0F, 0.0F};
      const float2 turned = Turned(from, half, d, a_.scale, turn);
      query[d] = exists ? turned.x : 0.0F;
      query[half + d] = exists ? turned.y : 0.0F;
    }
  }

  // Stores the new keys and values of this part, as far as this block reads them. Blocks with other
  // queries of the kv head store the same bits.
  __device__ void AppendPositions() const {
    const int64_t new_begin = max(begin_, first_);
    const int64_t row = new_begin - first_;
    const int count = static_cast<int>(max(end_ - new_begin, static_cast<int64_t>(0)));
    const int64_t key_part = a_.heads + blockIdx.y, value_part = key_part + a_.kv_heads;
    const bool turns = a_.turns;
    for (int i = static_cast<int>(threadIdx.x); i < count * vectors_; i += kThreads) {
      const int n = i / vectors_, d = i % vectors_ * N;
      const int64_t to = (new_begin + n) * D_ + d;
      StorePacked<T, N>(values_ + to, LoadPacked<T, N>(Part(row + n, value_part) + d));
      if (!turns) StorePacked<T, N>(keys_ + to, LoadPacked<T, N>(Part(row + n, key_part) + d));
    }
    if (!turns) return;
    const int half = D_ / 2;
    for (int i = static_cast<int>(threadIdx.x); i < count * half; i += kThreads) {
      const int n = i / half, d = i % half;
      const int64_t own = row + n - first_row_;  // among this block's rows
      const float2 turn =
          own >= 0 && own < rows_ ? Turns()[own * half + d] : TurnOf(a_, new_begin + n, d);
      const float2 turned = Turned(Part(row + n, key_part), half, d, 1.0F, turn);
      T* const key = keys_ + (new_begin + n) * D_;
      key[d] = FromFloat<T>(turned.x);
      key[half + d] = FromFloat<T>(turned.y);
    }
  }

  // A thread has vector number thread % vectors_ of every slots-th value.
  __device__ int Slots() const { return kThreads / vectors_; }
  __device__ int Slot() const { return static_cast<int>(threadIdx.x) / vectors_; }
  __device__ int ValueColumn() const { return static_cast<int>(threadIdx.x) % vectors_ * N; }

  // Starts to load the thread's values of a tile from number k on.
  __device__ void AskForValues(int64_t tile, int count, int k,
                               Packed<T, N> (&values)[kInFlight]) const {
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int u = Slot() + (k + j) * Slots();
      if (Slot() < Slots() && u < count) {
        values[j] = LoadPacked<T, N>(values_ + (tile + u) * D_ + ValueColumn());
      }
    }
  }

  // Computes the scores of kKeys keys by a team of threads.
  __device__ void FormScores(int64_t tile, int count) const {
    const int team = static_cast<int>(threadIdx.x) / kTeam;
    const int lane = static_cast<int>(threadIdx.x) % kTeam;
    float scores[kQueries][kKeys] = {};
    for (int first = lane; first < vectors_; first += kTeam * kInFlight) {
      Packed<T, N> keys[kInFlight][kKeys];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
#pragma unroll
        for (int k = 0; k < kKeys; ++k) {
          const int vector = first + j * kTeam, u = team + k * kTeams;
          if (vector < vectors_ && u < count) {
            keys[j][k] = LoadPacked<T, N>(keys_ + (tile + u) * D_ + vector * N);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int vector = first + j * kTeam;
        if (vector < vectors_) AddProducts(vector, keys[j], scores);
      }
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
        float score = scores[q][k];
#pragma unroll
        for (int distance = kTeam / 2; distance > 0; distance /= 2) {
          score += FromLane(score, distance);
        }
        const int u = team + k * kTeams;
        const bool is_before_window =
            kRestricted && a_.window > 0 && tile + u + a_.window <= memory_.last[q];
        const bool is_seen = u < count && tile + u <= memory_.last[q] && !is_before_window;
        if (kRestricted && a_.score_cap > 0.0F) score = Capped(a_, score);
        if (lane == q % kTeam) memory_.weights[q * kTile + u] = is_seen ? score : -INFINITY;
      }
    }
  }

  __device__ void AddProducts(int vector, const Packed<T, N> (&packed)[kKeys],
                              float (&scores)[kQueries][kKeys]) const {
    float keys[kKeys][N];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) Unpack<T, N>(packed[k], keys[k]);
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      float query[N];
      LoadFloats(memory_.queries + q * D_ + vector * N, query);
#pragma unroll
      for (int k = 0; k < kKeys; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) scores[q][k] += query[i] * keys[k][i];
      }
    }
  }

  __device__ static void LoadFloats(const float* from, float (&to)[N]) {
    if constexpr (N == 1) {
      to[0] = *from;
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        to[i] = four.x;
        to[i + 1] = four.y;
        to[i + 2] = four.z;
        to[i + 3] = four.w;
      }
    }
  }

  __device__ static void StoreFloats(float* to, const float (&from)[N]) {
    if constexpr (N == 1) {
      *to = from[0];
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<float4*>(to + i) = {from[i], from[i + 1], from[i + 2], from[i + 3]};
      }
    }
  }

  // A warp has every kWarps-th query.
  __device__ void FormWeights() const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int q = static_cast<int>(threadIdx.x) / kWarp; q < kQueries; q += kWarps) {
      float* const weights = memory_.weights + q * kTile;
      const float first = weights[lane], second = weights[lane + kWarp];
      const float before = memory_.largest[q];
      const float largest = fmaxf(
          before, WarpReduce(fmaxf(first, second), [](float a, float b) { return fmaxf(a, b); }));
      const float weight = __expf(first - largest), other = __expf(second - largest);
      const float sum = WarpReduce(weight + other, [](float a, float b) { return a + b; });
      weights[lane] = weight;
      weights[lane + kWarp] = other;
      __syncwarp();  // all have read what is overwritten now
      if (lane != 0) continue;
      const float factor = __expf(before - largest);
      memory_.factor[q] = factor;
      memory_.sum[q] = memory_.sum[q] * factor + sum;
      memory_.largest[q] = largest;
    }
  }

  __device__ void AddValues(int64_t tile, int count, Packed<T, N> (&values)[kInFlight],
                            float (&sums)[kQueries][N]) const {
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      const float factor = memory_.factor[q];
#pragma unroll
      for (int i = 0; i < N; ++i) sums[q][i] *= factor;
    }
    if (Slot() >= Slots()) return;
    for (int k = 0; Slot() + k * Slots() < count; k += kInFlight) {
      if (k > 0) AskForValues(tile, count, k, values);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const int u = Slot() + (k + j) * Slots();
        if (u >= count) break;
        float value[N];
        Unpack<T, N>(values[j], value);
#pragma unroll
        for (int q = 0; q < kQueries; ++q) {
          const float weight = memory_.weights[q * kTile + u];
#pragma unroll
          for (int i = 0; i < N; ++i) sums[q][i] += weight * value[i];
        }
      }
    }
  }

  // Adds up the slots' sums, in their order, and stores the results of this part.
  __device__ void AddUpThreads(const float (&sums)[kQueries][N]) const {
    if (Slot() < Slots()) {
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        StoreFloats(memory_.scratch + (Slot() * kQueries + q) * D_ + ValueColumn(), sums[q]);
      }
    }
    __syncthreads();
    const PartResults results(a_, gridDim.x);
    for (int i = static_cast<int>(threadIdx.x); i < kQueries * D_; i += kThreads) {
      const int q = i / D_, d = i % D_;
      if (memory_.last[q] < begin_) continue;
      float sum = memory_.scratch[i];
      for (int slot = 1; slot < Slots(); ++slot) sum += memory_.scratch[slot * kQueries * D_ + i];
      const int64_t result = (RowOf(q) * a_.heads + HeadOf(q)) * gridDim.x + blockIdx.x;
      results.sums[result * D_ + d] = sum;
      if (d == 0) results.statistics[result] = {memory_.largest[q], memory_.sum[q]};
    }
  }

  const CachedAttentionArguments& a_;
  const BlockMemory<N, kQueries> memory_;
  const int D_, vectors_, group_;
  const int64_t first_;  // position
  const int64_t first_query_, first_row_;
  int64_t begin_;  // of the positions of the part that its queries see
  T* const keys_;
  T* const values_;
  int rows_;     // of the block's queries
  int64_t end_;  // of the same
};

template <typename T, int N, int kQueries, bool kRestricted>
__global__ void __launch_bounds__(kThreads)
    CachedAttentionPartKernel(const CachedAttentionArguments a, int64_t part_positions) {
  PartBlock<T, N, kQueries, kRestricted> block(a, part_positions);
  if (block.has_positions()) block.Run();
}

// Calls use(kQueries) with the number of queries of a block.
template <typename Use>
cudaError_t WithQueries(int queries, Use use) {
  switch (queries) {
    case 1:
      return use(std::integral_constant<int, 1>());
    case 2:
      return use(std::integral_constant<int, 2>());
    case 4:
      return use(std::integral_constant<int, 4>());
    default:
      return use(std::integral_constant<int, kMaxQueries>());
  }
}

cudaError_t LaunchPlainParts(cudaStream_t stream, ElementType type,
                             const CachedAttentionArguments& a, const CachedAttentionParts& parts) {
  const auto vectors = [&](int width) { return a.head_size % width == 0; };
  return DispatchTypeAndWidth(type, vectors, [&](auto element, auto width) {
    return WithQueries(parts.queries, [&](auto queries) {
      using T = decltype(element);
      constexpr int N = decltype(width)::value;
      constexpr int kQueries = decltype(queries)::value;
      const dim3 grid(static_cast<unsigned>(parts.count), static_cast<unsigned>(a.kv_heads),
                      static_cast<unsigned>(parts.query_tiles));
      return Launch(a.is_restricted() ? CachedAttentionPartKernel<T, N, kQueries, true>
                                      : CachedAttentionPartKernel<T, N, kQueries, false>,
                    grid, dim3(kThreads), BlockMemory<N, kQueries>::Bytes(a.head_size), stream, a,
                    parts.positions);
    });
  });
}

}  // namespace

int64_t CachedAttentionWorkspaceBytes(ElementType type, const CachedAttentionArguments& a) {
  const int64_t parts = PartsOf(type, a).count;
  if (parts == 1 && FitsCachedAttentionTiles(type, a)) return 0;
  return a.rows * a.heads * parts * (a.head_size + 2) * static_cast<int64_t>(sizeof(float));
}

cudaError_t LaunchCachedAttention(cudaStream_t stream, ElementType type,
                                  const CachedAttentionArguments& a) {
  const CachedAttentionParts parts = PartsOf(type, a);
  const bool is_tiled = FitsCachedAttentionTiles(type, a);
  const cudaError_t error = is_tiled ? LaunchCachedAttentionTiles(stream, a, parts)
                                     : LaunchPlainParts(stream, type, a, parts);
  if (error != cudaSuccess || (is_tiled && parts.count == 1)) return error;
  return LaunchCachedAttentionSum(stream, type, a, parts);
}

}  // namespace stagecoach::kernels
