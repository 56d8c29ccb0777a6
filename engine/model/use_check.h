#ifndef STAGECOACH_ENGINE_MODEL_USE_CHECK_H_
#define STAGECOACH_ENGINE_MODEL_USE_CHECK_H_

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/untouched_memory.h"
#include "engine/model/layer.h"

namespace stagecoach::engine {

// What of a micro-batch an operation may read until its last use alone.
enum class Operand : uint8_t { kX, kY, kDy, kStash };
inline constexpr Operand kOperands[] = {Operand::kX, Operand::kY, Operand::kDy, Operand::kStash};

// As the layer declares it; that of the stash is always BackwardInput.
LastUse LastUseOf(const partition::LayerMemory& memory, Operand operand);

// FailedPrecondition "BackwardWeight reads y, but memory.output_last_use is kForward".
absl::Status ReadAfterLastUse(absl::string_view operation, Operand operand, LastUse last_use);

// Checks that the backward operations of a chain's layers keep to what these declare: x, y, dy and
// the stash are not touched after their last use (LayerSpec::memory), when others may have their
// memory. In the place of what an operation may not touch, it is given addresses that tell
// (base::UntouchedMemory): this takes no memory, and a layer that is right never notices.
//
// For CPU devices. Checks the first step of training that it sees, in a debug build every one, and
// nothing where the system does not tell.
class UseCheck {
 public:
  // One layer after the other. `x`, `y`: of a micro-batch, without memory; an empty shape of y: the
  // output is stored nowhere.
  void Add(const LayerSpec& spec, const Tensor& x, const Tensor& y);

  // Calls `call` with the arguments of layer i's backward operation, changed as above. `use`: the
  // operation; kBackwardInput also for both in one. Errors: those of `call`, and ReadAfterLastUse.
  absl::Status Call(int i, absl::string_view operation, LastUse use, const LayerArgs& args,
                    absl::FunctionRef<absl::Status(const LayerArgs&)> call);

 private:
  static constexpr size_t kKinds = std::size(kOperands);
  struct Declared {
    Tensor tensor;      // without memory
    int64_t bytes = 0;  // 0: there is none
    LastUse last_use = LastUse::kBackwardWeight;
  };
  using LayerDeclared = std::array<Declared, kKinds>;  // index: Operand

  bool Checks(const CallContext& call);
  // Where the largest operand of that kind has room; null where the system cannot tell.
  base::UntouchedMemory* MemoryFor(size_t kind);

  std::vector<LayerDeclared> layers_;
  std::array<std::optional<base::UntouchedMemory>, kKinds> memory_;
  std::optional<int64_t> first_step_;
  bool is_done_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_USE_CHECK_H_
