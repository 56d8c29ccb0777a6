#include "kernels/cpu/compiled_operations.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace stagecoach::kernels {

const CompiledOperations& OperationsForThisProcessor() {
  static constexpr CompiledOperations kOnly = {STAGECOACH_CPU_ARCH, &CreateCpuOps};
  return kOnly;
}

}  // namespace stagecoach::kernels
