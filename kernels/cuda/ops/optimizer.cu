#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/ops/optimizer_kernels.h"

// The updates of parameters: each element is read and written once, by the kernel of its optimizer.
// The norms of gradients are in gradient_norm.cu.
namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kBatch = 2;  // vectors of each array that a thread has in flight
constexpr int kVector = 4;

__device__ float DecayOf(const ParameterChunk& chunk, float of_step) {
  return chunk.weight_decay < 0.0F ? of_step : chunk.weight_decay;
}

// How one element changes. `states` are the kStates numbers that the optimizer keeps for it.
struct AdamWRule {
  static constexpr int kStates = 2;
  AdamWCoefficients c;

  // Returns the rule of a chunk that has a learning rate or a weight decay of its own.
  __device__ AdamWRule For(const ParameterChunk& chunk) const {
    AdamWRule own = *this;
    own.c.rate = c.rate * chunk.rate_factor;
    own.c.keep = 1.0F - c.learning_rate * chunk.rate_factor * DecayOf(chunk, c.weight_decay);
    return own;
  }

  __device__ void Apply(float gradient, bool decays, float& value, float (&states)[2]) const {
    const float m = c.beta1 * states[0] + (1.0F - c.beta1) * gradient;
    const float v = c.beta2 * states[1] + (1.0F - c.beta2) * gradient * gradient;
    states[0] = m;
    states[1] = v;
    const float kept = decays ? c.keep * value : value;
    value = kept - c.rate * m / (sqrtf(v) * c.root + c.epsilon);
  }
};

struct SgdRule {
  static constexpr int kStates = 1;
  SgdCoefficients c;

  __device__ SgdRule For(const ParameterChunk& chunk) const {
    SgdRule own = *this;
    own.c.learning_rate = c.learning_rate * chunk.rate_factor;
    own.c.weight_decay = DecayOf(chunk, c.weight_decay);
    return own;
  }

  __device__ void Apply(float gradient, bool decays, float& value, float (&states)[1]) const {
    const float decay = decays ? c.weight_decay * value : 0.0F;
    const float m = c.momentum * states[0] + gradient + decay;
    states[0] = m;
    value -= c.learning_rate * m;
  }
};

// N neighboring elements with their states and, if chunks may have them, their averages.
template <int N, typename Rule, bool kHasEmas>
struct Elements {
  float value[N], gradient[N], states[Rule::kStates][N], ema[kHasEmas ? N : 1] = {};

  __device__ void Read(const ParameterChunk& chunk, int i) {
    LoadStreaming(chunk.gradient + i, gradient);
    LoadStreaming(chunk.value + i, value);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) LoadStreaming(chunk.states[s] + i, states[s]);
    if constexpr (kHasEmas) {
      if (chunk.ema != nullptr) LoadStreaming(chunk.ema + i, ema);
    }
  }

  __device__ void Update(const Rule& rule, float scale, bool decays) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float own[Rule::kStates];
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) own[s] = states[s][i];
      rule.Apply(gradient[i] * scale, decays, value[i], own);
#pragma unroll
      for (int s = 0; s < Rule::kStates; ++s) states[s][i] = own[s];
      if constexpr (kHasEmas) ema[i] += rule.c.ema_share * (value[i] - ema[i]);
    }
  }

  __device__ void Write(const ParameterChunk& chunk, int i) const {
    StoreStreaming(chunk.value + i, value);
#pragma unroll
    for (int s = 0; s < Rule::kStates; ++s) StoreStreaming(chunk.states[s] + i, states[s]);
    if constexpr (kHasEmas) {
      if (chunk.ema != nullptr) StoreStreaming(chunk.ema + i, ema);
    }
    if (chunk.working != nullptr) {
      StoreStreaming(reinterpret_cast<__nv_bfloat16*>(chunk.working) + i, value);
    }
  }
};

// Updates elements [begin, end) of the chunk. All reads of a batch come before its first write,
// because the compiler, which cannot know that the arrays do not overlap, would not reorder them.
template <int N, bool kHasEmas, typename Rule>
__device__ void UpdateRange(const ParameterChunk& chunk, int begin, int end, const Rule& rule,
                            float scale) {
  constexpr int kStep = kThreads * N;
  for (int first = begin + static_cast<int>(threadIdx.x) * N; first < end;
       first += kBatch * kStep) {
    Elements<N, Rule, kHasEmas> batch[kBatch];
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k * kStep < end) batch[k].Read(chunk, first + k * kStep);
    }
#pragma unroll
    for (int k = 0; k < kBatch; ++k) {
      if (first + k * kStep < end) {
        batch[k].Update(rule, scale, chunk.decays);
        batch[k].Write(chunk, first + k * kStep);
      }
    }
  }
}

// A plain loop suffices, because moving averages are few.
__device__ void UpdateAverage(const ParameterChunk& chunk) {
  for (int i = static_cast<int>(threadIdx.x); i < chunk.elements; i += kThreads) {
    chunk.value[i] = chunk.keep * chunk.value[i] + chunk.take * chunk.gradient[i];
  }
}

template <bool kHasEmas, typename Rule>
__global__ void __launch_bounds__(kThreads)
    UpdateKernel(const ParameterTable table, const Rule rule, const float* gradient_scale) {
  const ParameterChunk chunk = table.chunks[blockIdx.x];
  const float scale = gradient_scale == nullptr ? 1.0F : *gradient_scale;
  if (scale != scale) return;  // NaN
  if (chunk.is_average) {
    UpdateAverage(chunk);
    return;
  }
  const int in_vectors = chunk.aligned ? chunk.elements / kVector * kVector : 0;
  const bool is_plain = chunk.rate_factor == 1.0F && chunk.weight_decay < 0.0F;
  const Rule own = is_plain ? rule : rule.For(chunk);
  UpdateRange<kVector, kHasEmas>(chunk, 0, in_vectors, own, scale);
  UpdateRange<1, kHasEmas>(chunk, in_vectors, chunk.elements, own, scale);
}

__global__ void __launch_bounds__(kThreads) RoundKernel(const ParameterTable table) {
  const ParameterChunk chunk = table.chunks[blockIdx.x];
  if (chunk.working == nullptr) return;
  auto* const working = reinterpret_cast<__nv_bfloat16*>(chunk.working);
  const int in_vectors = chunk.aligned ? chunk.elements / kVector * kVector : 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < in_vectors; i += kThreads * kVector) {
    float values[kVector];
    LoadStreaming(chunk.value + i, values);
    StoreStreaming(working + i, values);
  }
  for (int i = in_vectors + static_cast<int>(threadIdx.x); i < chunk.elements; i += kThreads) {
    working[i] = FromFloat<__nv_bfloat16>(chunk.value[i]);
  }
}

__global__ void __launch_bounds__(kThreads) SwapKernel(const ParameterTable table) {
  const ParameterChunk chunk = table.chunks[blockIdx.x];
  if (chunk.ema == nullptr) return;
  auto* const working = reinterpret_cast<__nv_bfloat16*>(chunk.working);
  const int in_vectors = chunk.aligned ? chunk.elements / kVector * kVector : 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kVector; i < in_vectors; i += kThreads * kVector) {
    float value[kVector], ema[kVector];
    LoadStreaming(chunk.value + i, value);
    LoadStreaming(chunk.ema + i, ema);
    StoreStreaming(chunk.value + i, ema);
    StoreStreaming(chunk.ema + i, value);
    if (working != nullptr) StoreStreaming(working + i, ema);
  }
  for (int i = in_vectors + static_cast<int>(threadIdx.x); i < chunk.elements; i += kThreads) {
    const float value = chunk.value[i], ema = chunk.ema[i];
    chunk.value[i] = ema;
    chunk.ema[i] = value;
    if (working != nullptr) working[i] = FromFloat<__nv_bfloat16>(ema);
  }
}

template <typename Rule>
cudaError_t LaunchUpdate(cudaStream_t stream, const ParameterTable& table, const Rule& rule,
                         const float* gradient_scale) {
  if (table.chunk_count == 0) return cudaSuccess;
  const auto kernel = table.has_emas ? UpdateKernel<true, Rule> : UpdateKernel<false, Rule>;
  return Launch(kernel, dim3(static_cast<unsigned>(table.chunk_count)), dim3(kThreads), 0, stream,
                table, rule, gradient_scale);
}

}  // namespace

cudaError_t LaunchAdamW(cudaStream_t stream, const ParameterTable& table,
                        const AdamWCoefficients& coefficients, const float* gradient_scale) {
  return LaunchUpdate(stream, table, AdamWRule{coefficients}, gradient_scale);
}

cudaError_t LaunchSgd(cudaStream_t stream, const ParameterTable& table,
                      const SgdCoefficients& coefficients, const float* gradient_scale) {
  return LaunchUpdate(stream, table, SgdRule{coefficients}, gradient_scale);
}

cudaError_t LaunchRoundParameters(cudaStream_t stream, const ParameterTable& table) {
  if (table.chunk_count == 0) return cudaSuccess;
  return Launch(RoundKernel, dim3(static_cast<unsigned>(table.chunk_count)), dim3(kThreads), 0,
                stream, table);
}

cudaError_t LaunchSwapAverages(cudaStream_t stream, const ParameterTable& table) {
  if (table.chunk_count == 0) return cudaSuccess;
  return Launch(SwapKernel, dim3(static_cast<unsigned>(table.chunk_count)), dim3(kThreads), 0,
                stream, table);
}

}  // namespace stagecoach::kernels
