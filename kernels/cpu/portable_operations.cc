#include "kernels/cpu/compiled_operations.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/runtime/library_isa.h"

namespace stagecoach::kernels {

// CreateCpuOps of the other compilations (kernels/CMakeLists.txt).
std::unique_ptr<Ops> CreateCpuOpsV3(Device& device);
std::unique_ptr<Ops> CreateCpuOpsV4(Device& device);

// Operations do not use instructions that oneDNN may not use (ONEDNN_MAX_CPU_ISA): with that
// variable set, a wide processor computes as a narrow one does.
const CompiledOperations& OperationsForThisProcessor() {
  static constexpr CompiledOperations kV2 = {"x86-64-v2", &CreateCpuOps};
  static constexpr CompiledOperations kV3 = {"x86-64-v3", &CreateCpuOpsV3};
  static constexpr CompiledOperations kV4 = {"x86-64-v4", &CreateCpuOpsV4};
  static const CompiledOperations& chosen =
      __builtin_cpu_supports("x86-64-v4") && LibraryUses(dnnl_cpu_isa_avx512_core) ? kV4
      : __builtin_cpu_supports("x86-64-v3") && LibraryUses(dnnl_cpu_isa_avx2)      ? kV3
                                                                                   : kV2;
  return chosen;
}

}  // namespace stagecoach::kernels
