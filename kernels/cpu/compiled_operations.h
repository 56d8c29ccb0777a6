#ifndef STAGECOACH_KERNELS_CPU_COMPILED_OPERATIONS_H_
#define STAGECOACH_KERNELS_CPU_COMPILED_OPERATIONS_H_

#include <memory>

#include "kernels/device.h"
#include "kernels/ops/ops.h"

namespace stagecoach::kernels {

// The operations of CPU devices, as compiled for one kind of processor.
struct CompiledOperations {
  const char* arch;  // the value of -march
  std::unique_ptr<Ops> (*create)(Device& device);
};

// Returns the operations that CPU devices of this process have. A portable build chooses among
// several, once: see portable_operations.cc.
const CompiledOperations& OperationsForThisProcessor();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_COMPILED_OPERATIONS_H_
