#ifndef STAGECOACH_KERNELS_CPU_OPS_ACTIVATION_H_
#define STAGECOACH_KERNELS_CPU_OPS_ACTIVATION_H_

#include "base/check.h"
#include "kernels/activation.h"
#include "kernels/math.h"

namespace stagecoach::kernels {

// Each activation is a type, for loops that are compiled for each: y = Of(z), dz = Gradient(dy,
// known), where `known` is z if KeepsZ, otherwise y.
struct NoActivation {
  static float Of(float z) { return z; }
  static float Gradient(float dy, float /*known*/) { return dy; }
};
struct ReluActivation {
  // NaN stays NaN in this form.
  static float Of(float z) { return z < 0.0F ? 0.0F : z; }
  static float Gradient(float dy, float y) { return y > 0.0F ? dy : 0.0F; }
};
struct GeluActivation {
  static float Of(float z) { return Gelu(z); }
  static float Gradient(float dy, float z) { return dy * GeluDerivative(z); }
};
struct GeluExactActivation {
  static float Of(float z) { return GeluExact(z); }
  static float Gradient(float dy, float z) { return dy * GeluExactDerivative(z); }
};
struct TanhActivation {
  static float Of(float z) { return Tanh(z); }
  static float Gradient(float dy, float y) { return dy * TanhDerivative(y); }
};
struct SigmoidActivation {
  static float Of(float z) { return Sigmoid(z); }
  static float Gradient(float dy, float y) { return dy * SigmoidDerivative(y); }
};

// Calls use(Type()) for the type of the activation.
template <typename Use>
void WithActivation(Activation activation, Use use) {
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
  base::PrintAndAbort(__FILE__, __LINE__, "WithActivation", "unknown activation");
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ACTIVATION_H_
