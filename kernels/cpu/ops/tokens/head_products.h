#ifndef STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_PRODUCTS_H_
#define STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_PRODUCTS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/cpu/products/matrix_product.h"

namespace stagecoach::kernels {

// The products of a head for m rows, with a row for each class in z and its gradients. C classes, F
// features.
struct HeadProducts {
  TiledProduct z, dw;  // over tiles of classes: w x^T, with x transposed, and dz^T x
  TiledProduct dx;     // over tiles of features: dz w

  static absl::StatusOr<HeadProducts> Create(DType type, int64_t m, int64_t F,
                                             const Tiling& class_tiles, const Tiling& feature_tiles,
                                             int slots) {
    const int64_t C = class_tiles.extent;
    const auto z_shape = [&](int64_t classes) {
      return ProductShape{.m = classes, .n = m, .k = F, .lda = F, .ldb = m, .ldc = m};
    };
    const auto dw_shape = [&](int64_t classes) {
      ProductShape shape{.m = classes, .n = F, .k = m, .lda = m, .ldb = F, .ldc = F};
      shape.may_accumulate = true;
      return shape;
    };
    const auto dx_shape = [&](int64_t features) {
      ProductShape shape{.m = m, .n = features, .k = C, .lda = m, .ldb = F, .ldc = F};
      shape.transpose_a = true;
      return shape;
    };
    HeadProducts products;
    ASSIGN_OR_RETURN(products.z, TiledProduct::Create(type, class_tiles, slots, z_shape));
    ASSIGN_OR_RETURN(products.dw, TiledProduct::Create(type, class_tiles, slots, dw_shape));
    ASSIGN_OR_RETURN(products.dx, TiledProduct::Create(type, feature_tiles, slots, dx_shape));
    return products;
  }

  int64_t scratchpad_bytes() const {
    return std::max({z.scratchpad_bytes(), dw.scratchpad_bytes(), dx.scratchpad_bytes()});
  }
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TOKENS_HEAD_PRODUCTS_H_
