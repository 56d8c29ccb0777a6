#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_

#include <cuda_runtime.h>

#include "kernels/activation.h"
#include "kernels/math.h"

namespace stagecoach::kernels {

// Computes LogisticGate, except for its division: rounded exactly, that alone would take about as
// many instructions as everything else that is done to an element.
__device__ inline float FastLogisticGate(float exponential) {
  return __fdividef(1.0F, 1.0F + exponential);
}
__device__ inline float GeluGateOf(float z) { return FastLogisticGate(__expf(GeluExponent(z))); }

// Each activation is a type, as on a CPU (kernels/cpu/ops/activation.h). Gradients are products
// that are rounded by themselves, whatever they are added to.
struct NoActivation {
  static __device__ float Of(float z) { return z; }
  static __device__ float Gradient(float dy, float /*known*/) { return dy; }
};
struct ReluActivation {
  // NaN stays NaN in this form.
  static __device__ float Of(float z) { return z < 0.0F ? 0.0F : z; }
  static __device__ float Gradient(float dy, float y) { return y > 0.0F ? dy : 0.0F; }
};
struct GeluActivation {
  static __device__ float Of(float z) { return z * GeluGateOf(z); }
  static __device__ float Gradient(float dy, float z) {
    return __fmul_rn(dy, GeluDerivative(z, GeluGateOf(z)));
  }
};
struct GeluExactActivation {
  static __device__ float Of(float z) { return z * GeluExactGate(z, __expf(GeluExactExponent(z))); }
  static __device__ float Gradient(float dy, float z) {
    const float exponential = __expf(GeluExactExponent(z));
    return __fmul_rn(dy, GeluExactDerivative(z, GeluExactGate(z, exponential), exponential));
  }
};
struct TanhActivation {
  static __device__ float Of(float z) { return TanhOf(z, __expf(TanhExponent(z))); }
  static __device__ float Gradient(float dy, float y) { return __fmul_rn(dy, TanhDerivative(y)); }
};
struct SigmoidActivation {
  static __device__ float Of(float z) { return LogisticGate(__expf(-z)); }
  static __device__ float Gradient(float dy, float y) {
    return __fmul_rn(dy, SigmoidDerivative(y));
  }
};

// Calls use(Type()) for the type of the activation.
template <typename Use>
cudaError_t WithActivation(Activation activation, Use use) {
  switch (activation) {
    case Activation::kNone:
      return use(NoActivation());
    case Activation::kRelu:
      return use(ReluActivation());
    case Activation::kGelu:
      return use(GeluActivation());
    case Activation::kGeluExact:
      return use(GeluExactActivation());
    case Activation::kTanh:
      return use(TanhActivation());
    case Activation::kSigmoid:
      return use(SigmoidActivation());
  }
  return cudaErrorInvalidValue;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ACTIVATIONS_CUH_
