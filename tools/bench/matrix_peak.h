#ifndef STAGECOACH_TOOLS_BENCH_MATRIX_PEAK_H_
#define STAGECOACH_TOOLS_BENCH_MATRIX_PEAK_H_

#include "absl/status/statusor.h"
#include "engine/device/device_spec.h"

namespace stagecoach::tools {

// The most floating-point operations a second that products of matrices can come near to on
// `devices` devices at once, a multiply-add counting 2; measured now, in the precision of the spec.
// CPU devices: what their cores, or those that there are, do in registers (RegisterPeakFlops; 0:
// not known). GPUs: what the first does in a product of three square matrices large enough to fill
// it, times the number of GPUs. Errors: those of MakeDevice, and ResourceExhausted if the product
// has no room.
absl::StatusOr<double> MatrixPeakFlops(const engine::DeviceSpec& spec, int devices);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_MATRIX_PEAK_H_
