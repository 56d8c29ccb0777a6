#include "engine/model/use_check.h"

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

// Index: UseCheck::Kind.
constexpr const char* kNames[] = {"x", "y", "dy", "the stash"};
constexpr const char* kFields[] = {"input_last_use", "output_last_use", "output_gradient_last_use"};

}  // namespace

void UseCheck::Add(const LayerSpec& spec, const Tensor& x, const Tensor& y) {
  const partition::LayerMemory& memory = spec.memory;
  const int64_t y_bytes = spec.computes_loss ? 0 : y.bytes();
  layers_.push_back({{{x, x.bytes(), memory.input_last_use},
                      {y, y_bytes, memory.output_last_use},
                      {y, y_bytes, memory.output_gradient_last_use},
                      {{}, memory.stash_bytes, LastUse::kBackwardInput}}});
}

bool UseCheck::Checks(const CallContext& call) {
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

base::UntouchedMemory* UseCheck::MemoryFor(Kind kind) {
  std::optional<base::UntouchedMemory>& memory = memory_[kind];
  if (!memory.has_value()) {
    int64_t bytes = 0;
    for (const LayerDeclared& layer : layers_) bytes = std::max(bytes, layer[kind].bytes);
    absl::StatusOr<base::UntouchedMemory> created = base::UntouchedMemory::Create(bytes);
    if (!created.ok()) {
      is_done_ = true;
      return nullptr;
    }
    memory.emplace(*std::move(created));
  }
  return &*memory;
}

absl::Status UseCheck::Call(int i, absl::string_view operation, LastUse use, const LayerArgs& args,
                            absl::FunctionRef<absl::Status(const LayerArgs&)> call) {
  if (!Checks(args.call)) return call(args);
  const LayerDeclared& layer = layers_[static_cast<size_t>(i)];
  LayerArgs changed = args;
  std::array<bool, kKinds> hidden = {};
  for (const Kind kind : {kX, kY, kDy, kStash}) {
    const Declared& own = layer[kind];
    if (own.bytes == 0 || own.last_use >= use) continue;
    const base::UntouchedMemory* const memory = MemoryFor(kind);
    if (memory == nullptr) return call(args);
    hidden[kind] = true;
    if (kind == kStash) {
      changed.stash = memory->data();
    } else {
      Tensor& tensor = kind == kX ? changed.x : kind == kY ? changed.y : changed.dy;
      tensor = own.tensor;
      tensor.data = memory->data();
    }
  }
  RETURN_IF_ERROR(call(changed));
  for (const Kind kind : {kX, kY, kDy, kStash}) {
    const Declared& own = layer[kind];
    if (!hidden[kind] || !memory_[kind]->TakeTouched(own.bytes)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        operation, " reads ", kNames[kind], ", but ",
        kind == kStash
            ? "that is kept until BackwardInput: memory.weight_stash_bytes are kept longer"
            : absl::StrCat("memory.", kFields[kind], " is ",
                           own.last_use == LastUse::kForward ? "kForward" : "kBackwardInput")));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
