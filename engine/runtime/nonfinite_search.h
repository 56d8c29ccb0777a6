#ifndef STAGECOACH_ENGINE_RUNTIME_NONFINITE_SEARCH_H_
#define STAGECOACH_ENGINE_RUNTIME_NONFINITE_SEARCH_H_

#include <compare>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/nn/activation_observer.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The place where a step first produces a NaN or infinity. The order depends on neither schedule
// nor partition: by micro-batch, and then through the layers, to the loss and back.
struct NonFinite {
  int micro_batch = 0;  // of the whole batch
  Pass pass = Pass::kForward;
  int order = 0;  // in the pass: the number of the layer, negative in kBackward

  int layer() const { return pass == Pass::kBackward ? -order : order; }
  friend auto operator<=>(const NonFinite&, const NonFinite&) = default;
};

// Convert the result for other processes: "" if there is none. The inverse returns InvalidArgument
// for other texts.
std::string ToText(const std::optional<NonFinite>& found);
absl::StatusOr<std::optional<NonFinite>> ParseNonFinite(absl::string_view text);

// Finds the first of those that the layers of one device produce (Executor::FindNonFinite).
class NonFiniteSearch final : public ActivationObserver {
 public:
  // `read` copies a tensor to the host and waits for it; it is empty if the device's memory is the
  // host's.
  using Read = std::function<absl::StatusOr<const std::byte*>(const kernels::Tensor&)>;
  explicit NonFiniteSearch(Read read) : read_(std::move(read)) {}

  // Declares that what is shown from now on is of this micro-batch.
  void Begin(int micro_batch) { micro_batch_ = micro_batch; }
  absl::Status OnTensor(Pass pass, int layer, absl::Span<const kernels::Tensor> made) override;

  const std::optional<NonFinite>& first() const { return first_; }

 private:
  const Read read_;
  int micro_batch_ = 0;
  std::optional<NonFinite> first_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_NONFINITE_SEARCH_H_
