#include "kernels/ops/linear.h"

namespace stagecoach::kernels {

const char* ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return "none";
    case Activation::kRelu:
      return "relu";
    case Activation::kGelu:
      return "gelu";
    case Activation::kGeluExact:
      return "gelu_exact";
  }
  return "?";
}

}  // namespace stagecoach::kernels
