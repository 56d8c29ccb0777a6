#ifndef STAGECOACH_KERNELS_OPS_OPS_H_
#define STAGECOACH_KERNELS_OPS_OPS_H_

#include <memory>
#include <typeinfo>

#include "absl/status/statusor.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/operation.h"
#include "kernels/ops/optimizer.h"

namespace stagecoach::kernels {

// The operations of one device. An operation of fixed shape is created and checked once, and called
// many times; it may be called only from jobs of the device's stream, and must not outlive the
// device. All tensors are in the device's memory. A call returns the first error of starting the
// work; on a CPU device, operands that fit the shape cause none.
//
// docs/development.md says how to add one.
class Ops {
 public:
  virtual ~Ops() = default;

  // Creates the operation of a shape that kernels/ops/operations.h lists: Create(LinearShape{...})
  // returns a LinearOp. InvalidArgument: an extent below 1, or one too large for the backend.
  template <typename Shape>
  absl::StatusOr<std::unique_ptr<typename Shape::Op>> Create(const Shape& shape) {
    absl::StatusOr<std::unique_ptr<Operation>> op = CreateOf(typeid(Shape), &shape);
    if (!op.ok()) return op.status();
    return std::unique_ptr<typename Shape::Op>(static_cast<typename Shape::Op*>(op->release()));
  }

  virtual ElementwiseOps& elementwise() = 0;
  virtual OptimizerOps& optimizer() = 0;

 protected:
  // `shape` points to a value of the type that `type` names. Unimplemented if this backend has no
  // operation for that shape.
  virtual absl::StatusOr<std::unique_ptr<Operation>> CreateOf(const std::type_info& type,
                                                              const void* shape) = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPS_H_
