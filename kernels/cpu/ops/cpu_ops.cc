#include "kernels/cpu/ops/cpu_ops.h"

#include "kernels/ops/operations.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<Operation>> CpuOps::CreateOf(const std::type_info& type,
                                                            const void* shape) {
  return CreateListed(AllShapes(), type, shape,
                      [this](const auto& each) { return CreateOnCpu(each, device_); });
}

std::unique_ptr<Ops> CreateCpuOps(Device& device) { return std::make_unique<CpuOps>(device); }

}  // namespace stagecoach::kernels
