#ifndef STAGECOACH_KERNELS_OPS_OPERATION_H_
#define STAGECOACH_KERNELS_OPS_OPERATION_H_

namespace stagecoach::kernels {

// The base of every operation of fixed shape. Its contract is a header with three things:
//   struct LinearShape { using Op = LinearOp; ... };  its extents, and everything else that is
//   fixed
//   class LinearOp : public Operation { ... };        its calls
//   absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCpu(const LinearShape&, Device&);
//   absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCuda(const LinearShape&, Device&);
// The last two are defined by the backends, each in the file of the operation's name.
class Operation {
 public:
  virtual ~Operation() = default;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_OPERATION_H_
