#ifndef STAGECOACH_KERNELS_OPS_OPERATIONS_H_
#define STAGECOACH_KERNELS_OPS_OPERATIONS_H_

#include <memory>
#include <typeinfo>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/columns.h"
#include "kernels/ops/concat.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/dequantize.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/head.h"
#include "kernels/ops/image_norm.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/operation.h"
#include "kernels/ops/pooling.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ops/transpose.h"

// The list of all operations of fixed shape. It is for the backends, which make each of them;
// others include the contract that they use.
namespace stagecoach::kernels {

template <typename... Shapes>
struct ShapeList {};

using AllShapes = ShapeList<        //
    ActivationShape,                //
    AttentionShape,                 //
    CachedAttentionShape,           //
    ColumnsShape,                   //
    ConcatShape,                    //
    ConvolutionShape,               //
    DequantizeShape,                //
    DropoutShape,                   //
    EmbeddingShape,                 //
    HeadShape,                      //
    ImageNormShape,                 //
    LayerNormShape,                 //
    LinearShape,                    //
    MeanSquaredErrorOfValuesShape,  //
    MeanSquaredErrorShape,          //
    PoolingShape,                   //
    SoftmaxCrossEntropyShape,       //
    SwiGluShape,                    //
    TransposeShape>;

// Does the work of Ops::CreateOf: create(shape) returns a backend's operation, or an error.
template <typename Create, typename... Shapes>
absl::StatusOr<std::unique_ptr<Operation>> CreateListed(ShapeList<Shapes...>,
                                                        const std::type_info& type,
                                                        const void* shape, Create create) {
  absl::StatusOr<std::unique_ptr<Operation>> op =
      absl::UnimplementedError(absl::StrCat("no operation of shape ", type.name()));
  static_cast<void>(
      ((type == typeid(Shapes) && (op = create(*static_cast<const Shapes*>(shape)), true)) || ...));
  return op;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPERATIONS_H_
