#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_OPERAND_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_OPERAND_H_

#include <cstdint>
#include <vector>

#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::kernels {

// A quantized matrix in the form in which kernels take it.
class QuantizedOperand {
 public:
  explicit QuantizedOperand(const QuantizedMatrix& matrix);

  const QuantizedMatrix& matrix() const { return matrix_; }
  bool is_int8() const { return matrix_.kind == Quantization::kInt8; }
  int64_t code_row_bytes() const { return layout_.code_row_bytes; }
  // The parts of an NF4 matrix, as many as a kernel takes at a time.
  const std::vector<Nf4Parts>& parts() const { return parts_; }

  // Return where things are in a matrix that is stored at `stored`.
  Nf4Data Nf4At(const void* stored) const;
  Int8Data Int8At(const void* stored) const;

 private:
  const QuantizedMatrix matrix_;
  const QuantizedLayout layout_;
  std::vector<Nf4Parts> parts_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_QUANTIZED_OPERAND_H_
