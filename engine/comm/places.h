#ifndef STAGECOACH_ENGINE_COMM_PLACES_H_
#define STAGECOACH_ENGINE_COMM_PLACES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "engine/comm/rendezvous.h"

namespace stagecoach::engine {

// The two places of a rendezvous, for ConnectRendezvous; rendezvous.h says what they do.

// The key of the first failure of a launch, in the form of FailureText.
inline constexpr char kFailedKey[] = "failed";
std::string FailureText(int rank, const absl::Status& why);
// Returns Aborted, "rank 2 has failed: why", for such a text.
absl::Status FailureOf(const std::string& text);

// `parent` is the folder of the place, in which the launch has one of its own.
absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectFolder(const Launch& launch,
                                                          const std::string& parent,
                                                          absl::Duration deadline);

// `address` is "host:port" or "[host]:port".
absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectTcp(const Launch& launch,
                                                       const std::string& address,
                                                       absl::Duration deadline, LateNotice* late);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_PLACES_H_
