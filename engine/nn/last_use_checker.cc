#include "engine/nn/last_use_checker.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

#ifdef NDEBUG
constexpr bool kChecksEveryStep = false;
#else
constexpr bool kChecksEveryStep = true;
#endif

// Names, by Operand.
constexpr const char* kNames[] = {"x", "y", "dy", "the stash"};
constexpr const char* kFields[] = {"input_last_use", "output_last_use", "output_gradient_last_use"};

}  // namespace

LastUse LastUseOf(const partition::LayerMemory& memory, Operand operand) {
  switch (operand) {
    case Operand::kX:
      return memory.input_last_use;
    case Operand::kY:
      return memory.output_last_use;
    case Operand::kDy:
      return memory.output_gradient_last_use;
    case Operand::kStash:
      break;
  }
  return LastUse::kBackwardInput;
}

absl::Status ReadAfterLastUse(absl::string_view operation, Operand operand, LastUse last_use) {
  const auto index = static_cast<size_t>(operand);
  return absl::FailedPreconditionError(absl::StrCat(
      operation, " reads ", kNames[index], ", but ",
      operand == Operand::kStash
          ? "that is kept until BackwardInput: memory.weight_stash_bytes are kept longer"
          : absl::StrCat("memory.", kFields[index], " is ",
                         last_use == LastUse::kForward ? "kForward" : "kBackwardInput")));
}

void LastUseChecker::Add(const LayerSpec& spec, const Tensor& x, const Tensor& y) {
  const int64_t y_bytes = spec.computes_loss ? 0 : y.bytes();
  LayerDeclared& declared = layers_.emplace_back();
  declared = {{{x, x.bytes()}, {y, y_bytes}, {y, y_bytes}, {{}, spec.memory.stash_bytes}}};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    declared[kind].last_use = LastUseOf(spec.memory, kOperands[kind]);
  }
}

bool LastUseChecker::Checks(const CallContext& call) {
  if (is_done_ || !call.is_training || call.numbers == nullptr) return false;
  const int64_t step = call.numbers->step;
  if (kChecksEveryStep || step == first_step_.value_or(step)) {
    first_step_ = step;
    return true;
  }
  is_done_ = true;
  for (auto& memory : memory_) memory.reset();
  return false;
}

base::GuardPages* LastUseChecker::MemoryFor(size_t kind) {
  std::optional<base::GuardPages>& memory = memory_[kind];
  if (!memory.has_value()) {
    int64_t bytes = 0;
    for (const LayerDeclared& layer : layers_) bytes = std::max(bytes, layer[kind].bytes);
    absl::StatusOr<base::GuardPages> created = base::GuardPages::Create(bytes);
    if (!created.ok()) {
      is_done_ = true;
      return nullptr;
    }
    memory.emplace(*std::move(created));
  }
  return &*memory;
}

absl::Status LastUseChecker::Call(int i, absl::string_view operation, LastUse use,
                                  const LayerArgs& args,
                                  absl::FunctionRef<absl::Status(const LayerArgs&)> call) {
  if (!Checks(args.call)) return call(args);
  const LayerDeclared& layer = layers_[static_cast<size_t>(i)];
  LayerArgs changed = args;
  Tensor* const tensors[] = {&changed.x, &changed.y, &changed.dy};
  std::array<bool, kKinds> hidden = {};
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const Declared& own = layer[kind];
    if (own.bytes == 0 || own.last_use >= use) continue;
    const base::GuardPages* const memory = MemoryFor(kind);
    if (memory == nullptr) return call(args);
    hidden[kind] = true;
    if (kOperands[kind] == Operand::kStash) {
      changed.stash = memory->data();
    } else {
      *tensors[kind] = own.tensor;
      tensors[kind]->data = memory->data();
    }
  }
  RETURN_IF_ERROR(call(changed));
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const Declared& own = layer[kind];
    if (!hidden[kind] || !memory_[kind]->TakeTouched(own.bytes)) continue;
    return ReadAfterLastUse(operation, kOperands[kind], own.last_use);
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
