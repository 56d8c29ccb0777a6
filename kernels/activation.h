#ifndef STAGECOACH_KERNELS_ACTIVATION_H_
#define STAGECOACH_KERNELS_ACTIVATION_H_

#include <array>
#include <cstdint>

namespace stagecoach::kernels {

// A pointwise function, after a linear layer or by itself.
//   kRelu: max(0, z)
//   kGelu: 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))   (Hendrycks & Gimpel 2016, the tanh
//   form, as in GPT-2)
//   kGeluExact: z Phi(z) = 0.5 z (1 + erf(z / sqrt(2)))   (the same paper, its definition)
//   kTanh: tanh(z)
//   kSigmoid: 1 / (1 + e^-z)
enum class Activation : uint8_t { kNone, kRelu, kGelu, kGeluExact, kTanh, kSigmoid };
inline constexpr std::array kAllActivations = {Activation::kNone, Activation::kRelu,
                                               Activation::kGelu, Activation::kGeluExact,
                                               Activation::kTanh, Activation::kSigmoid};

constexpr const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluExact:
      return "gelu_exact";
    case Activation::kTanh:
      return "tanh";
    case Activation::kSigmoid:
      return "sigmoid";
  }
  return "?";
}

// Returns whether the derivative needs z; that of the other functions is computed from y.
constexpr bool KeepsZ(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kGeluExact;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_ACTIVATION_H_
