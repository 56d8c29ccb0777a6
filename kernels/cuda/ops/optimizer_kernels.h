#ifndef STAGECOACH_KERNELS_CUDA_OPS_OPTIMIZER_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_OPTIMIZER_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

// The kernels of OptimizerOps (kernels/ops/optimizer.h has the formulas). All parameters of a group
// are updated by one launch: they are cut into chunks, each the work of one block.
namespace stagecoach::kernels {

// The elements of a chunk, except perhaps a parameter's last one.
inline constexpr int kChunkElements = 8192;

// A range of one parameter and its states.
struct ParameterChunk {
  float* value = nullptr;
  uint16_t* working = nullptr;  // bfloat16; may be null
  const float* gradient = nullptr;
  float* states[2] = {nullptr, nullptr};
  float* ema = nullptr;  // may be null
  int32_t elements = 0;
  bool aligned = false;  // all of these are aligned for vectors of four elements
  bool decays = true;
  // True for a moving average, which nothing else updates: value = keep value + take gradient.
  bool is_average = false;
  float keep = 0.0F, take = 0.0F;
  // Of others: the learning rate is the step's times this, and the weight decay is the step's or,
  // if that is not below 0, its own.
  float rate_factor = 1.0F, weight_decay = -1.0F;
};

// The description of a group, in device memory.
struct ParameterTable {
  const ParameterChunk* chunks = nullptr;
  int32_t chunk_count = 0;
  const int32_t* first_chunk = nullptr;  // of each parameter; the end is at [parameter_count]
  int32_t parameter_count = 0;
  bool has_emas = false;              // some chunk has one
  double* partial_squares = nullptr;  // one for each chunk: SquaredNorms' scratch
};

// AdamW's coefficients, with everything that depends on the step alone precomputed.
struct AdamWCoefficients {
  float beta1, beta2, epsilon;
  float rate;  // learning rate / (1 - beta1^t)
  float root;  // 1 / sqrt(1 - beta2^t)
  float keep;  // 1 - learning rate * weight decay, for parameters that decay
  float learning_rate, weight_decay;
  float ema_share;
};
struct SgdCoefficients {
  float learning_rate, momentum, weight_decay;
  float ema_share;
};
// `gradient_scale` is in device memory; null: 1.
cudaError_t LaunchAdamW(cudaStream_t stream, const ParameterTable& table,
                        const AdamWCoefficients& coefficients, const float* gradient_scale);
cudaError_t LaunchSgd(cudaStream_t stream, const ParameterTable& table,
                      const SgdCoefficients& coefficients, const float* gradient_scale);

cudaError_t LaunchRoundParameters(cudaStream_t stream, const ParameterTable& table);
cudaError_t LaunchSwapAverages(cudaStream_t stream, const ParameterTable& table);

// Writes squares (parameter_count).
cudaError_t LaunchSquaredNorms(cudaStream_t stream, const ParameterTable& table, double* squares);

// Reads squares (rows, columns).
cudaError_t LaunchClipScale(cudaStream_t stream, const double* squares, int64_t rows,
                            int64_t columns, float clip_norm, double* norm, float* scale);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_OPTIMIZER_KERNELS_H_
