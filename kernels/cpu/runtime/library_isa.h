#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_ISA_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_ISA_H_

#include <oneapi/dnnl/dnnl.h>

namespace stagecoach::kernels {

// Returns whether oneDNN may use all of a set of instructions: this processor has them, and
// ONEDNN_MAX_CPU_ISA does not forbid them. A set has the bits of those that it includes.
inline bool LibraryUses(dnnl_cpu_isa_t set) {
  const auto bits = static_cast<unsigned>(set);
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & bits) == bits;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_ISA_H_
