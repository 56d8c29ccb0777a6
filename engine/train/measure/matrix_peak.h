#ifndef STAGECOACH_ENGINE_TRAIN_MEASURE_MATRIX_PEAK_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURE_MATRIX_PEAK_H_

#include "absl/status/statusor.h"
#include "engine/runtime/device/device_spec.h"

namespace stagecoach::engine {

// Returns the most floating-point operations per second that matrix products can approach on
// `devices` devices at once, a multiply-add counting 2; measured now, in the precision of the spec.
// CPU devices: what their cores, or those that exist, reach in registers (RegisterPeakFlops; 0: not
// known). GPUs: what the first reaches in a product of three square matrices large enough to fill
// it, times the number of GPUs. Errors: those of MakeDevice, and ResourceExhausted if the product
// has no room.
absl::StatusOr<double> MatrixPeakFlops(const DeviceSpec& spec, int devices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURE_MATRIX_PEAK_H_
