#ifndef STAGECOACH_ENGINE_COMM_HOST_ADDRESS_H_
#define STAGECOACH_ENGINE_COMM_HOST_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// Returns the numeric address at which this process should listen for the others of a run, which
// all call this concurrently: the loopback address if all are on one host, so that nothing listens
// beyond it; otherwise that of `own_address` (Rendezvous::own_address), or of the host's name if
// that is empty. `gather` returns every process's text. Network namespaces count as hosts.
// Unavailable: no socket can be bound there, or other hosts could not reach it.
absl::StatusOr<std::string> AgreeOnAddress(
    absl::string_view own_address,
    absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(const std::string&)> gather);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_HOST_ADDRESS_H_
