#ifndef STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_
#define STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"
#include "kernels/ops/linear.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::engine {

using kernels::Activation;

// A low-rank adapter of some of a linear layer's outputs, from the first one on (lora.h).
struct LinearAdapter {
  std::string name;  // "q_proj"
  int64_t first = 0, outputs = 1;
  int64_t rank = 1;
  float scale = 1.0F;
};

struct LinearOptions {
  int64_t outputs = 1;
  Activation activation = Activation::kNone;
  bool has_bias = true;
  // Initialization of the weight: uniform with standard deviation gain / sqrt(inputs) (sqrt(2)
  // times that with kRelu); or normal with `deviation`, if set. The mean is 0.
  float gain = 1.0F;
  std::optional<float> deviation = std::nullopt;
  std::vector<LinearAdapter> adapters = {};
  float adapter_dropout = 0.0F;  // of what all of them take, in training
  // How the weight is stored, and its parts (QuantizedMatrix::parts).
  std::optional<kernels::Quantization> quantization = std::nullopt;
  std::vector<int64_t> parts = {};
};

// y = activation(x w + b) along the last axis: maps a sample of shape [..., inputs] to [...,
// outputs], each position by itself. Parameters "weight" [inputs, outputs] and, with a bias, "bias"
// [outputs], initially 0.
//
// With adapters y = activation(x w + b + ...): each adds scale dropout(x) A B to its outputs, which
// do not overlap those of others. Its parameters are "q_proj.lora_A" [inputs, rank], uniform in
// +-1 / sqrt(inputs), and "q_proj.lora_B" [rank, outputs], initially 0 (Hu et al. 2021, and PEFT's
// initial values). With adapters or a quantized weight, the weight and the bias must be frozen
// (LayerContext::is_frozen). A quantized weight is expanded into scratch for each product.
LayerFactory Linear(const LinearOptions& options);
LayerFactory Linear(int64_t outputs, Activation activation = Activation::kNone, float gain = 1.0F,
                    bool has_bias = true);

extern const LayerType kLinearType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_LINEAR_H_
