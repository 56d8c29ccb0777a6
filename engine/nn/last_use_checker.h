#ifndef STAGECOACH_ENGINE_NN_LAST_USE_CHECKER_H_
#define STAGECOACH_ENGINE_NN_LAST_USE_CHECKER_H_

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/system/guard_pages.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// Operands of a micro-batch that an operation may read only until their last use.
enum class Operand : uint8_t { kX, kY, kDy, kStash };
inline constexpr Operand kOperands[] = {Operand::kX, Operand::kY, Operand::kDy, Operand::kStash};

// Returns the last use that the layer declares; that of the stash is always BackwardInput.
LastUse LastUseOf(const partition::LayerMemory& memory, Operand operand);

// Returns FailedPrecondition "BackwardWeight reads y, but memory.output_last_use is kForward".
absl::Status ReadAfterLastUse(absl::string_view operation, Operand operand, LastUse last_use);

// Checks that the backward operations of a chain's layers keep to their declarations: x, y, dy and
// the stash are not touched after their last use (LayerSpec::memory), when their memory may be in
// use for something else. Operands that an operation may not touch are replaced with addresses that
// detect access (base::GuardPages): this takes no memory, and a correct layer never notices.
//
// For CPU devices. Checks the first training step that it sees (in a debug build, every one), and
// nothing if the system cannot report accesses.
class LastUseChecker {
 public:
  // Adds the next layer. `x`, `y`: those of a micro-batch, without memory; an empty shape of y
  // means that the output is stored nowhere.
  void Add(const LayerSpec& spec, const Tensor& x, const Tensor& y);

  // Calls `call` with the arguments of layer i's backward operation, changed as above. `use`: the
  // operation; kBackwardInput also for both in one. Errors: those of `call`, and ReadAfterLastUse.
  absl::Status Call(int i, absl::string_view operation, LastUse use, const LayerArgs& args,
                    absl::FunctionRef<absl::Status(const LayerArgs&)> call);

 private:
  static constexpr size_t kKinds = std::size(kOperands);
  struct Declared {
    Tensor tensor;      // without memory
    int64_t bytes = 0;  // 0: none
    LastUse last_use = LastUse::kBackwardWeight;
  };
  using LayerDeclared = std::array<Declared, kKinds>;  // index: Operand

  bool Checks(const CallContext& call);
  // Returns guard pages that hold the largest operand of that kind; null if the system cannot
  // report accesses.
  base::GuardPages* MemoryFor(size_t kind);

  std::vector<LayerDeclared> layers_;
  std::array<std::optional<base::GuardPages>, kKinds> memory_;
  std::optional<int64_t> first_step_;
  bool is_done_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAST_USE_CHECKER_H_
