#ifndef STAGECOACH_KERNELS_PEER_COPY_H_
#define STAGECOACH_KERNELS_PEER_COPY_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

// Copies one message at a time from a device to another one (or to itself) of the same process,
// without the host waiting for either. Made by the receiving device; reusable for one message after
// another:
//
//   sender's job:    SenderReady    the work issued so far comes before the copy: it fills `from`
//   receiver's job:  ReceiverReady  the work issued so far comes before the copy: it frees `to`
//   either's job, after both:       Copy
//   sender's job, after Copy:       SenderContinues    later work comes after the copy: it may
//                                                      overwrite `from`
//   receiver's job, after Copy:     ReceiverContinues  later work comes after the copy: it
//                                                      reads `to`
//
// The caller orders these calls among threads. Copies into one device are done one after the other,
// concurrently with the work of its stream.
class PeerCopy {
 public:
  virtual ~PeerCopy() = default;

  virtual absl::Status SenderReady() = 0;
  virtual absl::Status ReceiverReady() = 0;
  virtual absl::Status Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual absl::Status SenderContinues() = 0;
  virtual absl::Status ReceiverContinues() = 0;

  // Returns when the last copy was done. Pre-condition: either stream has finished after its
  // Continues.
  virtual absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt() const = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_PEER_COPY_H_
