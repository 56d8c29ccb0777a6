#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_ALGORITHM_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_ALGORITHM_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/tuning/tuning_table.h"

namespace stagecoach::kernels {

// Distinguishes an algorithm of cuBLASLt from all others for the same product: its
// CUBLASLT_ALGO_CONFIG attributes. Two algorithms that are equal compute the same bits.
struct Algorithm {
  int32_t id = 0;
  uint32_t tile = 0;
  uint32_t stages = 0;
  int32_t split_k = 1;
  uint32_t reduction = 0;
  uint32_t swizzle = 0;
  uint32_t custom_option = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster_shape = 0;
  // 1: not an algorithm, but the product without its epilogue and a kernel after it (BlasLt::Plan).
  uint32_t apart = 0;

  std::string ToString() const;  // "id 66, tile 20, stages 12, ..."

  // Converts to and from a tuning file's form. DataLoss, with the name, if an attribute is missing
  // or out of range, or if there is an unknown one.
  Choice ToChoice() const;
  static absl::StatusOr<Algorithm> FromChoice(const Choice& choice);

  friend bool operator==(const Algorithm&, const Algorithm&) = default;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_ALGORITHM_H_
