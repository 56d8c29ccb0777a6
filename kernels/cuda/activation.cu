#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/elementwise_kernels.h"
#include "kernels/cuda/map.cuh"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

__device__ float GateOf(float z) { return GeluGate(__expf(GeluExponent(z))); }

// The functions of one operand ignore the second, which is the same.
struct Relu {
  // In this form not-a-number stays one.
  __device__ float operator()(float z, float) const { return z < 0.0F ? 0.0F : z; }
};
struct ReluBackward {
  __device__ float operator()(float dy, float y) const { return y > 0.0F ? dy : 0.0F; }
};
struct GeluForward {
  __device__ float operator()(float z, float) const { return z * GateOf(z); }
};
struct GeluBackward {
  __device__ float operator()(float dy, float z) const { return dy * GeluDerivative(z, GateOf(z)); }
};

}  // namespace

cudaError_t LaunchRelu(cudaStream_t stream, ElementType type, int64_t elements, const void* z,
                       void* y) {
  return LaunchMap<Relu>(stream, type, elements, z, z, y);
}

cudaError_t LaunchReluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* y, void* dz) {
  return LaunchMap<ReluBackward>(stream, type, elements, dy, y, dz);
}

cudaError_t LaunchGelu(cudaStream_t stream, ElementType type, int64_t elements, const void* z,
                       void* y) {
  return LaunchMap<GeluForward>(stream, type, elements, z, z, y);
}

cudaError_t LaunchGeluBackward(cudaStream_t stream, ElementType type, int64_t elements,
                               const void* dy, const void* z, void* dz) {
  return LaunchMap<GeluBackward>(stream, type, elements, dy, z, dz);
}

cudaError_t LaunchAddFloats(cudaStream_t stream, int64_t elements, const float* from, float* to) {
  return LaunchAdd(stream, ElementType::kFloat32, elements, to, from, to);
}

}  // namespace stagecoach::kernels
