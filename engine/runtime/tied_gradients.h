#ifndef STAGECOACH_ENGINE_RUNTIME_TIED_GRADIENTS_H_
#define STAGECOACH_ENGINE_RUNTIME_TIED_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/comm/transport.h"
#include "engine/runtime/stage/stage.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Sums the gradients of tied parameters (engine/models/model.h), on the stages of both: the work of
// TIES. Each of the two stages sums the gradients of its own layer over micro-batches and replicas,
// so the sum of the two has the same bits wherever the stages are. Two ranks exchange their
// gradients in kTieParts parts; the next is in flight while one is added. A rank that has both adds
// them.
class TiedGradients {
 public:
  // A tie with an end on this rank.
  struct End {
    StageId first_stage;    // of the parameter that comes first in the model
    kernels::Tensor own;    // the gradient here, or the first one if both are here: float32
    kernels::Tensor other;  // the second one, if that is also here
    Rank peer;              // has the second one otherwise
  };

  // `ends`: in the order of ties in the model. `workspace`: TieWorkspaceBytes of the largest that
  // has a peer, in the device's memory.
  TiedGradients(kernels::Device& device, std::vector<End> ends, std::byte* workspace)
      : device_(&device), ends_(std::move(ends)), workspace_(workspace) {}

  // A job of the rank's stream, and in its order. `once_together` is called when the first peer has
  // arrived here too, which is a wait of its own; or at once, without peers. `deadline`: for each
  // wait.
  absl::Status Sum(Transport& transport, absl::Duration deadline,
                   absl::FunctionRef<absl::Status()> once_together);

 private:
  struct Part {
    kernels::Tensor own, received;
    Transport::Ticket sent, received_ticket;
  };
  absl::Status Post(Transport& transport, const End& end, int index, Part& part) const;
  absl::Status Exchange(Transport& transport, const End& end, absl::Duration deadline,
                        absl::FunctionRef<absl::Status()> once_there) const;

  kernels::Device* device_;
  std::vector<End> ends_;
  std::byte* workspace_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_TIED_GRADIENTS_H_
