#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/tile.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/attention/cached_attention_kernels.h"
#include "kernels/cuda/ops/attention/cached_attention_parts.cuh"

// Attention with a cache of bfloat16 for few rows, on tensor cores. Time is dominated not by
// computing, but by reads that wait for one another: so a warp starts to load all keys and values
// of its next kKeys positions at once, and holds them as they lie in memory. Products are those of
// tensor_core.cuh, with g = lane / 4 and m = lane % 4:
//   scores (8 queries, 8 keys): a lane has numbers 8 m to 8 m + 7 of each chunk of 32 of the key g,
//     and of the query g; both factors use the same order.
//   y^T (numbers, 8 queries): a lane has 8 neighboring numbers, from 8 g on, of values of keys
//     2 m, 2 m + 1, 2 m + 8 and 2 m + 9, the ones whose weights it has.
namespace stagecoach::kernels {
namespace {

constexpr int kQueries = 8;  // of a block
constexpr int kKeys = 32;    // of a warp at a time
constexpr int kMaxRows = 8;
// The positions of a part, unless all positions form one part, which needs no sum.
constexpr int64_t kPartPositions = 512;
constexpr int64_t kMaxOnePart = 2048 * 64;  // positions times numbers of a head
constexpr int64_t kBlocks = 128;            // about the number of multiprocessors

// Kernels for heads of at most 32 kChunks numbers.
template <int kChunks>
struct Tiles {
  static constexpr int kWarps = kChunks > 2 ? 8 : 16;  // limited by the registers they need
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kStrips = (kChunks + 1) / 2;  // of 64 numbers
  static constexpr int kHead = 64 * kStrips;
  static constexpr int kPitch = 32 * kChunks + 8;  // of queries and keys
};

template <int kChunks>
struct TileMemory {
  using Own = Tiles<kChunks>;
  static constexpr int kFloats = Own::kWarps * kQueries * (Own::kHead + 3) + 2 * kQueries;
  static size_t Bytes(const CachedAttentionArguments& a) {
    const int64_t turns = a.turns ? kMaxRows * a.head_size : 0;
    return static_cast<size_t>(kFloats + turns) * sizeof(float) +
           static_cast<size_t>(2 * kQueries * Own::kPitch) * sizeof(__nv_bfloat16);
  }
  __device__ TileMemory()
      : queries(SharedMemory<__nv_bfloat16>()),
        keys(queries + kQueries * Own::kPitch),
        sums(reinterpret_cast<float*>(keys + kMaxRows * Own::kPitch)),
        largest(sums + Own::kWarps * kQueries * Own::kHead),
        weights(largest + Own::kWarps * kQueries),
        factors(weights + Own::kWarps * kQueries),
        totals(reinterpret_cast<PartStatistics*>(factors + Own::kWarps * kQueries)),
        turns(reinterpret_cast<float2*>(totals + kQueries)) {}

  __nv_bfloat16* queries;  // (kQueries, kPitch), rotated
  __nv_bfloat16* keys;     // (kMaxRows, kPitch): those of the rows, with rotary positions
  float* sums;             // (kWarps, kQueries, kHead), of weighted values
  float* largest;          // (kWarps, kQueries), score
  float* weights;          // (kWarps, kQueries), sum
  float* factors;          // (kQueries, kWarps), of a warp's sums
  PartStatistics* totals;  // of queries
  float2* turns;           // (kMaxRows, D/2), with rotary positions
};

// Returns the place of a warp's sum: lanes that store at once touch each bank once.
template <int kHead>
__device__ int PlaceOf(int query, int number) {
  return query * kHead + (number ^ (query & ~1));
}

// Windows and caps are known if kRestricted: for the others there is no register to spare.
template <int kChunks, bool kRestricted>
class TileBlock {
 public:
  using Own = Tiles<kChunks>;

  __device__ TileBlock(const CachedAttentionArguments& a, int part_positions)
      : a_(a),
        D_(static_cast<int>(a.head_size)),
        group_(static_cast<int>(a.heads / a.kv_heads)),
        T_(static_cast<int>(a.positions)),
        first_(static_cast<int>(min(*a.first_position, a.positions))),
        first_query_(static_cast<int>(blockIdx.z) * kQueries),
        part_begin_(FirstSeen(0) + static_cast<int>(blockIdx.x) * part_positions),
        begin_(kRestricted ? max(part_begin_, FirstSeen(RowOf(0))) : part_begin_),
        keys_(static_cast<__nv_bfloat16*>(a.cache) + blockIdx.y * a.positions * D_),
        values_(keys_ + a.kv_heads * a.positions * D_) {
    last_row_ = min(RowOf(kQueries - 1), static_cast<int>(a.rows) - 1);
    end_ = min(part_begin_ + part_positions, min(first_ + last_row_ + 1, T_));
  }

  __device__ bool has_positions() const { return begin_ < end_; }

  __device__ void Run() {
    int base = begin_ + Warp() * kKeys;
    uint4 keys[kKeys / 8][kChunks], values[kKeys / 16][4][Own::kStrips];
    // The earlier keys are loaded while the rows' own are computed.
    LoadKeys(base, keys);
    LoadValues(base, values);
    if (a_.turns) {
      FindTurns();
      __syncthreads();
    }
    StoreQueries();
    AppendPositions();
    __syncthreads();
    HoldQueries();
    for (bool is_first = true; base < end_; base += Own::kWarps * kKeys, is_first = false) {
      if (!is_first) {
        LoadKeys(base, keys);
        LoadValues(base, values);
      }
      if (a_.turns) LoadTurnedKeys(base, keys);
      AddPositions(base, keys, values);
    }
    StoreSums();
    __syncthreads();
    const int warps = min((end_ - begin_ + kKeys - 1) / kKeys, Own::kWarps);
    WeighWarps(warps);
    __syncthreads();
    StoreResults(warps);
  }

 private:
  static __device__ int G() { return static_cast<int>(threadIdx.x) % kWarp / 4; }
  static __device__ int M() { return static_cast<int>(threadIdx.x) % 4; }
  static __device__ int Warp() { return static_cast<int>(threadIdx.x) / kWarp; }
  static __device__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  // Return the query that the calling thread works on, and its number among the threads of it.
  static __device__ int Query() {
    return static_cast<int>(threadIdx.x) / (Own::kThreads / kQueries);
  }
  static __device__ int OfQuery() {
    return static_cast<int>(threadIdx.x) % (Own::kThreads / kQueries);
  }

  __device__ int RowOf(int q) const { return (first_query_ + q) / group_; }
  __device__ int HeadOf(int q) const {
    return static_cast<int>(blockIdx.y) * group_ + (first_query_ + q) % group_;
  }
  __device__ int FirstSeen(int row) const {
    return kRestricted ? static_cast<int>(FirstSeenBy(a_, first_ + row)) : 0;
  }
  // Returns the last position that the queries of a row see; -1 if there is no such row.
  __device__ int LastOf(int row) const {
    return row < a_.rows && first_ + row < T_ ? first_ + row : -1;
  }
  __device__ const __nv_bfloat16* Part(int row, int part) const {
    const int heads = static_cast<int>(a_.heads + 2 * a_.kv_heads);
    return static_cast<const __nv_bfloat16*>(a_.qkv) +
           static_cast<int64_t>(row * heads + part) * D_;
  }
  __device__ const __nv_bfloat16* OwnKey(int row) const {
    return Part(row, static_cast<int>(a_.heads + blockIdx.y));
  }
  __device__ const __nv_bfloat16* OwnValue(int row) const {
    return Part(row, static_cast<int>(a_.heads + a_.kv_heads + blockIdx.y));
  }
  // Returns a key of the cache, or of a row.
  __device__ const __nv_bfloat16* KeyAt(int position) const {
    return position < first_ ? keys_ + static_cast<int64_t>(position) * D_
                             : OwnKey(position - first_);
  }
  __device__ const __nv_bfloat16* ValueAt(int position) const {
    return position < first_ ? values_ + static_cast<int64_t>(position) * D_
                             : OwnValue(position - first_);
  }
  static __device__ uint4 LoadIf(bool reads, const __nv_bfloat16* from) {
    uint4 words = {0, 0, 0, 0};
    if (reads) words = *reinterpret_cast<const uint4*>(from);
    return words;
  }

  __device__ void LoadKeys(int base, uint4 (&keys)[kKeys / 8][kChunks]) const {
    const int end = a_.turns ? min(end_, first_) : end_;
#pragma unroll
    for (int tile = 0; tile < kKeys / 8; ++tile) {
      const int position = base + 8 * tile + G();
      const __nv_bfloat16* const key = KeyAt(position) + 8 * M();
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        keys[tile][chunk] = LoadIf(position < end && 32 * chunk + 8 * M() < D_, key + 32 * chunk);
      }
    }
  }

  __device__ void LoadTurnedKeys(int base, uint4 (&keys)[kKeys / 8][kChunks]) const {
    if (base + kKeys <= first_) return;
#pragma unroll
    for (int tile = 0; tile < kKeys / 8; ++tile) {
      const int position = base + 8 * tile + G();
      if (position < first_ || position >= end_) continue;
      const __nv_bfloat16* const key = memory_.keys + (position - first_) * Own::kPitch + 8 * M();
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        keys[tile][chunk] = LoadIf(32 * chunk + 8 * M() < D_, key + 32 * chunk);
      }
    }
  }

  __device__ void LoadValues(int base, uint4 (&values)[kKeys / 16][4][Own::kStrips]) const {
#pragma unroll
    for (int tile = 0; tile < kKeys / 16; ++tile) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int position = base + 16 * tile + 2 * M() + k / 2 * 8 + k % 2;
        const __nv_bfloat16* const value = ValueAt(position) + 8 * G();
#pragma unroll
        for (int strip = 0; strip < Own::kStrips; ++strip) {
          values[tile][k][strip] =
              LoadIf(position < end_ && 64 * strip + 8 * G() < D_, value + 64 * strip);
        }
      }
    }
  }

  // Each warp has one row at a time.
  __device__ void FindTurns() const {
    const int half = D_ / 2;
    for (int row = Warp(); row <= last_row_; row += Own::kWarps) {
      for (int i = Lane(); i < half; i += kWarp) {
        memory_.turns[row * half + i] = TurnOf(a_, first_ + row, i);
      }
    }
  }

  __device__ void StoreQueries() const {
    const int half = D_ / 2, pieces = a_.turns ? half : D_;
    const int q = Query(), row = RowOf(q);
    const bool exists = row < a_.rows;
    const __nv_bfloat16* const from = Part(exists ? row : 0, HeadOf(q));
    __nv_bfloat16* const query = memory_.queries + q * Own::kPitch;
    const __nv_bfloat16 none = FromFloat<__nv_bfloat16>(0.0F);
    for (int d = OfQuery(); d < pieces; d += Own::kThreads / kQueries) {
      if (!a_.turns) {
        query[d] = exists ? from[d] : none;
        continue;
      }
      const float2 turn = exists ? memory_.turns[row * half + d] : float2{0.0F, 0.0F};
      const float2 turned = Turned(from, half, d, 1.0F, turn);
      query[d] = exists ? FromFloat<__nv_bfloat16>(turned.x) : none;
      query[half + d] = exists ? FromFloat<__nv_bfloat16>(turned.y) : none;
    }
  }

  // Stores the new keys and values of this part, as far as this block reads them: to the cache, and
  // rotated keys also for itself. Blocks with other queries of the kv head store the same bits
  // there, which no block reads before the next call. A warp has a position at a time.
  __device__ void AppendPositions() const {
    const int half = D_ / 2;
    for (int position = max(begin_, first_) + Warp(); position < end_; position += Own::kWarps) {
      const int row = position - first_;
      const int64_t place = static_cast<int64_t>(position) * D_;
      const __nv_bfloat16* const key = OwnKey(row);
      const __nv_bfloat16* const value = OwnValue(row);
      for (int d = Lane(); d < D_; d += kWarp) {
        values_[place + d] = value[d];
        if (!a_.turns) keys_[place + d] = key[d];
      }
      if (!a_.turns) continue;
      __nv_bfloat16* const own = memory_.keys + row * Own::kPitch;
      for (int d = Lane(); d < half; d += kWarp) {
        const float2 turned = Turned(key, half, d, 1.0F, memory_.turns[row * half + d]);
        keys_[place + d] = own[d] = FromFloat<__nv_bfloat16>(turned.x);
        keys_[place + half + d] = own[half + d] = FromFloat<__nv_bfloat16>(turned.y);
      }
    }
  }

  __device__ void HoldQueries() {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int number = 32 * chunk + 8 * M();
      uint4 words = {0, 0, 0, 0};
      if (number < D_) {
        words = *reinterpret_cast<const uint4*>(memory_.queries + G() * Own::kPitch + number);
      }
      memcpy(query_[chunk], &words, sizeof(words));
    }
    last_ = min(LastOf(RowOf(G())), end_ - 1);
  }

  // Computes the scores of query g and the two keys from `position` on.
  __device__ void FormScores(int position, const uint4 (&key)[kChunks], float (&scores)[2]) const {
    float sums[4] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint32_t words[4];
      memcpy(words, &key[chunk], sizeof(words));
#pragma unroll
      for (int step = 0; step < 4; step += 2) {
        const uint32_t query[4] = {query_[chunk][step], 0, query_[chunk][step + 1], 0};
        MultiplyTiles(sums, query, words[step], words[step + 1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) scores[i] = position + i <= last_ ? sums[i] * a_.scale : -INFINITY;
  }

  // Caps the scores of query g, removes those of positions before its window, and returns the
  // largest of them.
  __device__ float Restrict(int base, float (&scores)[kKeys / 8][2]) const {
    const int first = FirstSeen(RowOf(G()));
    float largest = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) {
      const int position = base + 8 * (i / 2) + 2 * M() + i % 2;
      float& score = scores[i / 2][i % 2];
      if (a_.score_cap > 0.0F) score = Capped(a_, score);
      if (position < first || position > last_) score = -INFINITY;
      largest = fmaxf(largest, score);
    }
    return largest;
  }

  __device__ void AddPositions(int base, const uint4 (&keys)[kKeys / 8][kChunks],
                               const uint4 (&values)[kKeys / 16][4][Own::kStrips]) {
    float scores[kKeys / 8][2], largest = largest_;
#pragma unroll
    for (int tile = 0; tile < kKeys / 8; ++tile) {
      FormScores(base + 8 * tile + 2 * M(), keys[tile], scores[tile]);
      if (!kRestricted) largest = fmaxf(largest, fmaxf(scores[tile][0], scores[tile][1]));
    }
    if (kRestricted) largest = fmaxf(largest, Restrict(base, scores));
    largest = fmaxf(largest, FromLane(largest, 1));
    largest = fmaxf(largest, FromLane(largest, 2));
    const float factor = __expf(largest_ - largest);
    largest_ = largest;
    sum_ *= factor;
    uint32_t weights[kKeys / 8];
#pragma unroll
    for (int tile = 0; tile < kKeys / 8; ++tile) {
      const float first = __expf(scores[tile][0] - largest);
      const float second = __expf(scores[tile][1] - largest);
      sum_ += first + second;
      weights[tile] = PackPair(first, second);
    }
    // The factors of the queries 2 m and 2 m + 1.
    const float first_factor = __shfl_sync(kAllLanes, factor, 8 * M());
    const float second_factor = __shfl_sync(kAllLanes, factor, 8 * M() + 4);
#pragma unroll
    for (int strip = 0; strip < Own::kStrips; ++strip) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        float(&sums)[4] = sums_[strip][pair];
        sums[0] *= first_factor;
        sums[1] *= second_factor;
        sums[2] *= first_factor;
        sums[3] *= second_factor;
#pragma unroll
        for (int tile = 0; tile < kKeys / 16; ++tile) {
          uint32_t words[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) words[k] = WordOf(values[tile][k][strip], pair);
          const uint32_t a[4] = {LowerHalves(words[0], words[1]), UpperHalves(words[0], words[1]),
                                 LowerHalves(words[2], words[3]), UpperHalves(words[2], words[3])};
          MultiplyTiles(sums, a, weights[2 * tile], weights[2 * tile + 1]);
        }
      }
    }
  }

  static __device__ uint32_t WordOf(const uint4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }

  __device__ void StoreSums() {
    const int warp = Warp();
    sum_ += FromLane(sum_, 1);
    sum_ += FromLane(sum_, 2);
    if (M() == 0) {
      memory_.largest[warp * kQueries + G()] = largest_;
      memory_.weights[warp * kQueries + G()] = sum_;
    }
    float* const sums = memory_.sums + warp * kQueries * Own::kHead;
#pragma unroll
    for (int strip = 0; strip < Own::kStrips; ++strip) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const int number = 64 * strip + 8 * G() + 2 * pair;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          *reinterpret_cast<float2*>(sums + PlaceOf<Own::kHead>(2 * M() + i, number)) = {
              sums_[strip][pair][i], sums_[strip][pair][2 + i]};
        }
      }
    }
  }

  // A warp has a query, and its lanes have the first `warps` warps.
  __device__ void WeighWarps(int warps) const {
    const int q = Warp(), warp = Lane();
    if (q >= kQueries) return;
    const bool exists = warp < warps;
    const float own = exists ? memory_.largest[warp * kQueries + q] : -FLT_MAX;
    const float largest = WarpReduce(own, [](float a, float b) { return fmaxf(a, b); });
    const float factor = __expf(own - largest);
    const float sum = WarpReduce(exists ? factor * memory_.weights[warp * kQueries + q] : 0.0F,
                                 [](float a, float b) { return a + b; });
    if (exists) memory_.factors[q * Own::kWarps + warp] = factor;
    if (warp == 0) memory_.totals[q] = {largest, sum};
  }

  // Stores y if there is one part, and otherwise the results of this part.
  __device__ void StoreResults(int warps) const {
    const int q = Query(), row = RowOf(q), last = LastOf(row);
    if (row >= a_.rows) return;
    const int64_t query = row * a_.heads + HeadOf(q);
    const int64_t result = query * gridDim.x + blockIdx.x;
    const PartStatistics total = memory_.totals[q];
    const PartResults results(a_, gridDim.x);
    for (int d = OfQuery(); d < D_; d += Own::kThreads / kQueries) {
      const float* const sums = memory_.sums + PlaceOf<Own::kHead>(q, d);
      float sum = 0.0F;
#pragma unroll 8
      for (int warp = 0; warp < warps; ++warp) {
        sum += memory_.factors[q * Own::kWarps + warp] * sums[warp * kQueries * Own::kHead];
      }
      if (gridDim.x == 1) {
        static_cast<__nv_bfloat16*>(a_.y)[query * D_ + d] =
            FromFloat<__nv_bfloat16>(last < 0 ? 0.0F : sum / total.sum);
      } else if (last >= begin_) {
        results.sums[result * D_ + d] = sum;
        if (d == 0) results.statistics[result] = total;
      }
    }
  }

  const CachedAttentionArguments& a_;
  const TileMemory<kChunks> memory_;
  const int D_, group_, T_;
  const int first_;  // position
  const int first_query_;
  const int part_begin_;
  const int begin_;  // of the positions of the part that its queries see
  __nv_bfloat16* const keys_;
  __nv_bfloat16* const values_;
  int last_row_;  // of the block's queries
  int end_;       // of the same

  // Numbers of query g: its elements, the last position it sees, and its warp's largest score; this
  // lane's sum of weights.
  uint32_t query_[kChunks][4];
  int last_ = -1;
  float largest_ = -FLT_MAX;  // finite, so that differences are not NaN
  float sum_ = 0.0F;
  float sums_[Own::kStrips][4][4] = {};  // of weighted values
};

// Prefetches the earlier keys and values of the block's part, by sectors of 32 bytes, while the
// kernel ahead computes the new ones. An earlier pass may still be writing some of them, and the
// position: wrong ones are of no consequence here.
__device__ void BringPartToCache(const CachedAttentionArguments& a, int part_positions) {
  const int64_t position = min(max(*a.first_position, int64_t{0}), a.positions);
  const int64_t begin = FirstSeenBy(a, position) + blockIdx.x * int64_t{part_positions};
  const int64_t end = min(begin + part_positions, position), D = a.head_size;
  const auto* const keys =
      static_cast<const __nv_bfloat16*>(a.cache) + blockIdx.y * a.positions * D;
  constexpr int kSector = 16;  // numbers
  const int64_t step = static_cast<int64_t>(blockDim.x) * kSector;
  for (int64_t i = begin * D + threadIdx.x * kSector; i < end * D; i += step) {
    BringToCache(keys + i);
    BringToCache(keys + a.kv_heads * a.positions * D + i);
  }
}

template <int kChunks, bool kRestricted>
__global__ void __launch_bounds__(Tiles<kChunks>::kThreads)
    CachedAttentionTilesKernel(const CachedAttentionArguments a, int part_positions) {
  LetNextKernelStart();
  if (a.starts_early) BringPartToCache(a, part_positions);
  WaitForEarlierKernels();
  TileBlock<kChunks, kRestricted> block(a, part_positions);
  if (block.has_positions()) block.Run();
}

template <int kChunks>
cudaError_t LaunchTiles(cudaStream_t stream, const CachedAttentionArguments& a,
                        const CachedAttentionParts& parts) {
  const dim3 grid(static_cast<unsigned>(parts.count), static_cast<unsigned>(a.kv_heads),
                  static_cast<unsigned>(parts.query_tiles));
  return LaunchEarly(a.starts_early,
                     a.is_restricted() ? CachedAttentionTilesKernel<kChunks, true>
                                       : CachedAttentionTilesKernel<kChunks, false>,
                     grid, dim3(Tiles<kChunks>::kThreads), TileMemory<kChunks>::Bytes(a), stream, a,
                     static_cast<int>(parts.positions));
}

}  // namespace

bool FitsCachedAttentionTiles(ElementType type, const CachedAttentionArguments& a) {
  return type == ElementType::kBfloat16 && a.rows <= kMaxRows && a.head_size % 8 == 0 &&
         a.head_size <= 128;
}

CachedAttentionParts CachedAttentionTileParts(const CachedAttentionArguments& a) {
  const auto quotient = [](int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; };
  CachedAttentionParts parts;
  parts.queries = kQueries;
  parts.query_tiles = quotient(a.rows * (a.heads / a.kv_heads), kQueries);
  const int64_t positions = a.seen_positions();
  parts.positions = positions;
  if (positions * a.head_size > kMaxOnePart) {
    const int64_t most = std::max<int64_t>(1, kBlocks / (a.kv_heads * parts.query_tiles));
    parts.positions = quotient(quotient(positions, most), kPartPositions) * kPartPositions;
  }
  parts.count = quotient(positions, parts.positions);
  return parts;
}

cudaError_t LaunchCachedAttentionTiles(cudaStream_t stream, const CachedAttentionArguments& a,
                                       const CachedAttentionParts& parts) {
  if (a.head_size <= 32) return LaunchTiles<1>(stream, a, parts);
  if (a.head_size <= 64) return LaunchTiles<2>(stream, a, parts);
  if (a.head_size <= 96) return LaunchTiles<3>(stream, a, parts);
  return LaunchTiles<4>(stream, a, parts);
}

}  // namespace stagecoach::kernels
