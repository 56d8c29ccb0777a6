#include "engine/model/check_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_device.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int kGuard = 0xA5;
constexpr int kNotANumber = 0xFF;         // each byte of it, read as float32
constexpr int64_t kMostDifferences = 64;  // of one tensor

absl::Status Wrong(const std::string& what) { return absl::FailedPreconditionError(what); }

// Memory between guards; without bytes it has no address.
class Area {
 public:
  static absl::StatusOr<Area> Create(kernels::Device& device, std::string name, int64_t bytes) {
    ASSIGN_OR_RETURN(kernels::Buffer buffer, device.AllocateTable(bytes + 2 * kGuardBytes));
    std::memset(buffer.data(), kGuard, static_cast<size_t>(buffer.bytes()));
    return Area(std::move(name), std::move(buffer), bytes);
  }

  const std::string& name() const { return name_; }
  std::byte* data() const { return bytes_ == 0 ? nullptr : buffer_.data() + kGuardBytes; }
  void Fill(int byte) {
    std::memset(buffer_.data() + kGuardBytes, byte, static_cast<size_t>(bytes_));
  }
  absl::Span<float> floats() const {
    return {reinterpret_cast<float*>(data()), static_cast<size_t>(bytes_) / sizeof(float)};
  }
  std::string Bytes() const {
    return {reinterpret_cast<const char*>(buffer_.data() + kGuardBytes),
            static_cast<size_t>(bytes_)};
  }
  bool HasIntactGuards() const {
    const auto is_guard = [](std::byte byte) { return byte == std::byte{kGuard}; };
    const std::byte* const first = buffer_.data();
    return std::all_of(first, first + kGuardBytes, is_guard) &&
           std::all_of(first + kGuardBytes + bytes_, first + 2 * kGuardBytes + bytes_, is_guard);
  }

 private:
  Area(std::string name, kernels::Buffer buffer, int64_t bytes)
      : name_(std::move(name)), buffer_(std::move(buffer)), bytes_(bytes) {}

  std::string name_;
  kernels::Buffer buffer_;
  int64_t bytes_;
};

// What of a micro-batch is made not-a-number before a call, since the layer declares that the call
// does not read it.
enum class Dead : uint8_t { kNothing, kX, kY, kDy, kStash, kWorkspace };

class Checker {
 public:
  Checker(const LayerFactory& factory, const LayerCheck& check)
      : factory_(factory), check_(check) {}

  absl::Status Run() {
    ASSIGN_OR_RETURN(device_, kernels::CreateCpuDevice({}));
    stream_ = &device_->stream();
    absl::Status status;
    stream_->Run([&] { status = RunOnStream(); });
    // Memory of the layer goes before its device.
    stream_->Run([&] { layer_.reset(); });
    return status;
  }

 private:
  using Bytes = std::string;

  struct MicroBatch {
    SampleNumbers numbers;
    std::vector<Area> areas;  // in the order of the names below
    Area& x() { return areas[0]; }
    Area& y() { return areas[1]; }
    Area& dx() { return areas[2]; }
    Area& dy() { return areas[3]; }
    Area& stash() { return areas[4]; }
    Area& weight_stash() { return areas[5]; }
    Area& gradient_stash() { return areas[6]; }
  };

  // All that the three operations give.
  struct Results {
    Bytes y, dx;
    std::vector<Bytes> gradients;
    bool operator==(const Results&) const = default;
  };

  absl::Status RunOnStream() {
    RETURN_IF_ERROR(Prepare());
    ASSIGN_OR_RETURN(const Results results, Compute(0));
    RETURN_IF_ERROR(CheckNumbers(results));
    RETURN_IF_ERROR(CheckRepeats(results));
    RETURN_IF_ERROR(CheckReads(results));
    RETURN_IF_ERROR(CheckGradients(results));
    RETURN_IF_ERROR(CheckAccumulates(results));
    RETURN_IF_ERROR(CheckJoined(results));
    RETURN_IF_ERROR(Forward(0));
    return BackwardInput(0, /*wants_dx=*/false);
  }

  // ---- The layer and its memory ----

  absl::Status Prepare() {
    layer_ = factory_();
    RETURN_IF_ERROR(Call("Prepare", [&]() -> absl::Status {
      ASSIGN_OR_RETURN(spec_, PrepareLayer(*layer_, {.device = *device_,
                                                     .rows = check_.rows,
                                                     .input = check_.input,
                                                     .vocabulary = check_.vocabulary}));
      return absl::OkStatus();
    }));
    if (spec_.takes_skip || spec_.computes_loss) {
      return absl::InvalidArgumentError(
          absl::StrCat("the layer ", spec_.takes_skip ? "takes a skip" : "computes the loss",
                       ": CheckLayer runs a layer by itself"));
    }
    ASSIGN_OR_RETURN(Area workspace,
                     Area::Create(*device_, "the workspace", spec_.memory.workspace_bytes));
    workspace_.emplace(std::move(workspace));
    for (size_t i = 0; i < spec_.parameters.size(); ++i) {
      const ParameterSpec& parameter = spec_.parameters[i];
      const int64_t bytes = parameter.shape.elements() * SizeOf(kernels::DType::kFloat32);
      ASSIGN_OR_RETURN(Area values, Area::Create(*device_, "parameter " + parameter.name, bytes));
      ASSIGN_OR_RETURN(Area gradient,
                       Area::Create(*device_, "the gradient of " + parameter.name, bytes));
      // Around what they start with, but not all alike.
      const float center = parameter.init.kind == Init::Kind::kConstant ? parameter.init.a : 0.0F;
      Draw(center - 0.5F, center + 0.5F, values.floats());
      parameters_.push_back(std::move(values));
      gradients_.push_back(std::move(gradient));
    }
    for (int64_t i = 0; i < 2; ++i) RETURN_IF_ERROR(AddMicroBatch(i));
    return absl::OkStatus();
  }

  absl::Status AddMicroBatch(int64_t number) {
    MicroBatch& own = micro_batches_.emplace_back();
    own.numbers = {.step = 1, .first_sample = number * check_.rows};
    const int64_t x_bytes = 4 * XShape().elements(), y_bytes = 4 * YShape().elements();
    const std::pair<const char*, int64_t> sizes[] = {
        {"x", x_bytes},
        {"y", y_bytes},
        {"dx", check_.vocabulary > 0 ? 0 : x_bytes},
        {"dy", y_bytes},
        {"the stash", spec_.memory.stash_bytes},
        {"the weight stash", spec_.memory.weight_stash_bytes},
        {"the gradient stash", spec_.memory.gradient_stash_bytes}};
    for (const auto& [name, bytes] : sizes) {
      ASSIGN_OR_RETURN(Area area, Area::Create(*device_, name, bytes));
      own.areas.push_back(std::move(area));
    }
    if (check_.vocabulary > 0) {
      const base::RandomStream random(check_.seed, streams_++);
      auto* const ids = reinterpret_cast<int32_t*>(own.x().data());
      for (int64_t i = 0; i < XShape().elements(); ++i) {
        ids[i] = static_cast<int32_t>(
            random.Below(static_cast<uint64_t>(i), static_cast<uint64_t>(check_.vocabulary)));
      }
    } else {
      Draw(-1.0F, 1.0F, own.x().floats());
    }
    Draw(-1.0F, 1.0F, own.dy().floats());
    return absl::OkStatus();
  }

  void Draw(float low, float high, absl::Span<float> values) {
    base::RandomStream(check_.seed, streams_++).FillUniform(low, high, values);
  }
  Shape XShape() const { return check_.input.Batched(check_.rows); }
  Shape YShape() const { return spec_.output.Batched(check_.rows); }

  // ---- Calls ----

  template <typename F>
  absl::Status Call(absl::string_view operation, F function) {
    absl::Status status;
    try {
      status = function();
    } catch (const std::exception& error) {
      status = absl::InternalError(absl::StrCat("throws: ", error.what()));
    }
    return base::Annotate(status, operation);
  }

  LayerArgs ArgsFor(MicroBatch& own) {
    parameter_tensors_.clear();
    gradient_tensors_.clear();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Shape& shape = spec_.parameters[i].shape;
      parameter_tensors_.push_back(kernels::Float32(parameters_[i].data(), shape));
      gradient_tensors_.push_back(kernels::Float32(gradients_[i].data(), shape));
    }
    const kernels::DType x_type = InputType(*device_, check_.vocabulary > 0);
    LayerArgs args{.stream = *stream_,
                   .call = {.is_training = true, .seed = check_.seed, .numbers = &own.numbers},
                   .x = {own.x().data(), x_type, XShape()},
                   .y = kernels::Float32(own.y().data(), YShape()),
                   .parameters = parameter_tensors_};
    workspace_->Fill(workspace_fill_);
    args.workspace = workspace_->data();
    return args;
  }

  // The call, after which nothing but `written` has changed.
  absl::Status Perform(const char* operation, MicroBatch& own, const LayerArgs& args,
                       absl::Status (Layer::*call)(const LayerArgs&),
                       std::vector<const Area*> written) {
    written.push_back(&*workspace_);
    std::vector<std::pair<const Area*, Bytes>> before;
    ForEachArea(own, [&](const Area& area) {
      if (std::find(written.begin(), written.end(), &area) == written.end()) {
        before.emplace_back(&area, area.Bytes());
      }
    });
    RETURN_IF_ERROR(Call(operation, [&] { return ((*layer_).*call)(args); }));
    for (const auto& [area, bytes] : before) {
      if (area->Bytes() != bytes) {
        return Wrong(
            absl::StrCat(operation, " changes ", area->name(), ", which it may only read"));
      }
    }
    std::string outside;
    ForEachArea(own, [&](const Area& area) {
      if (!area.HasIntactGuards()) outside = area.name();
    });
    if (outside.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat(operation, " writes outside of ", outside));
  }

  template <typename F>
  void ForEachArea(MicroBatch& own, F function) {
    for (const Area& area : own.areas) function(area);
    for (const Area& area : parameters_) function(area);
    for (const Area& area : gradients_) function(area);
    function(*workspace_);
  }

  absl::Status Forward(size_t number) {
    MicroBatch& own = micro_batches_[number];
    LayerArgs args = ArgsFor(own);
    args.stash = own.stash().data();
    args.weight_stash = own.weight_stash().data();
    return Perform("Forward", own, args, &Layer::Forward,
                   {&own.y(), &own.stash(), &own.weight_stash()});
  }

  LayerArgs BackwardArgs(MicroBatch& own) {
    LayerArgs args = ArgsFor(own);
    args.dy = kernels::Float32(own.dy().data(), YShape());
    args.weight_stash = own.weight_stash().data();
    args.gradient_stash = own.gradient_stash().data();
    return args;
  }

  absl::Status BackwardInput(size_t number, bool wants_dx = true) {
    MicroBatch& own = micro_batches_[number];
    LayerArgs args = BackwardArgs(own);
    args.stash = own.stash().data();
    if (wants_dx && check_.vocabulary == 0) args.dx = kernels::Float32(own.dx().data(), XShape());
    // The stashes may be overwritten by whoever read them last.
    return Perform("BackwardInput", own, args, &Layer::BackwardInput,
                   {&own.dx(), &own.stash(), &own.weight_stash(), &own.gradient_stash()});
  }

  absl::Status BackwardWeight(size_t number, bool accumulate = false) {
    MicroBatch& own = micro_batches_[number];
    LayerArgs args = BackwardArgs(own);
    args.stash = own.stash().data();  // which it has no more, but to find out whether it reads it
    args.gradients = gradient_tensors_;
    args.accumulate = accumulate;
    std::vector<const Area*> written = {&own.weight_stash(), &own.gradient_stash()};
    for (const Area& area : gradients_) written.push_back(&area);
    return Perform("BackwardWeight", own, args, &Layer::BackwardWeight, std::move(written));
  }

  void Poison(MicroBatch& own, Dead dead) {
    Area* const areas[] = {nullptr, &own.x(), &own.y(), &own.dy(), &own.stash(), nullptr};
    Area* const area = areas[static_cast<size_t>(dead)];
    if (area != nullptr) area->Fill(kNotANumber);
  }

  // All three operations, with some areas dead in B and W, or W alone.
  absl::StatusOr<Results> Compute(size_t number, Dead in_backward_input = Dead::kNothing,
                                  Dead in_backward_weight = Dead::kNothing) {
    MicroBatch& own = micro_batches_[number];
    const Bytes x = own.x().Bytes(), dy = own.dy().Bytes();
    RETURN_IF_ERROR(Forward(number));
    const Bytes y = own.y().Bytes();
    Poison(own, in_backward_input);
    RETURN_IF_ERROR(BackwardInput(number));
    Poison(own, in_backward_weight);
    if (!parameters_.empty()) RETURN_IF_ERROR(BackwardWeight(number));
    std::memcpy(own.x().data(), x.data(), x.size());
    std::memcpy(own.dy().data(), dy.data(), dy.size());
    return ResultsOf(own, y);
  }

  Results ResultsOf(MicroBatch& own, Bytes y) {
    Results results = {.y = std::move(y), .dx = own.dx().Bytes(), .gradients = {}};
    for (const Area& gradient : gradients_) results.gradients.push_back(gradient.Bytes());
    return results;
  }

  // ---- Checks ----

  absl::Status CheckNumbers(const Results& results) const {
    const auto is_finite = [](const Bytes& bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
    };
    if (!is_finite(results.y)) return Wrong("Forward gives y that is not finite");
    if (!is_finite(results.dx)) return Wrong("BackwardInput gives dx that is not finite");
    for (size_t i = 0; i < results.gradients.size(); ++i) {
      if (is_finite(results.gradients[i])) continue;
      return Wrong(absl::StrCat("BackwardWeight gives a gradient of ", spec_.parameters[i].name,
                                " that is not finite"));
    }
    return absl::OkStatus();
  }

  // Which result of two runs differs; "" if none does.
  std::string Difference(const Results& a, const Results& b) const {
    if (a.y != b.y) return "y";
    if (a.dx != b.dx) return "dx";
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      if (a.gradients[i] != b.gradients[i]) {
        return absl::StrCat("the gradient of ", spec_.parameters[i].name);
      }
    }
    return "";
  }

  absl::Status CheckRepeats(const Results& results) {
    ASSIGN_OR_RETURN(const Results again, Compute(0));
    if (const std::string what = Difference(results, again); !what.empty()) {
      return Wrong(absl::StrCat(what, " has other bits when it is computed again"));
    }
    RETURN_IF_ERROR(Forward(0));
    const Bytes y = micro_batches_[0].y().Bytes();
    RETURN_IF_ERROR(Forward(1));
    RETURN_IF_ERROR(BackwardInput(0));
    RETURN_IF_ERROR(BackwardInput(1));
    if (!parameters_.empty()) RETURN_IF_ERROR(BackwardWeight(0));
    const std::string what = Difference(results, ResultsOf(micro_batches_[0], y));
    if (what.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat(what,
                              " has other bits while another micro-batch is in flight: what a "
                              "layer keeps from one call to the next belongs in the areas "
                              "that it declares"));
  }

  absl::Status CheckReads(const Results& results) {
    // What areas hold before F, and the workspace before each call.
    for (Area& area : micro_batches_[0].areas) {
      const bool is_stash = area.name().ends_with("stash");
      if (is_stash || area.name() == "y" || area.name() == "dx") area.Fill(kNotANumber);
    }
    for (Area& area : gradients_) area.Fill(kNotANumber);
    workspace_fill_ = kNotANumber;
    ASSIGN_OR_RETURN(const Results fresh, Compute(0));
    if (const std::string what = Difference(results, fresh); !what.empty()) {
      return Wrong(absl::StrCat(what, " depends on what its own memory, or an area, held before"));
    }
    const partition::LayerMemory& memory = spec_.memory;
    struct Declared {
      Dead dead;
      const char* name;
      const char* field;
      LastUse last_use;
    };
    const Declared all[] = {
        {Dead::kX, "x", "input_last_use", memory.input_last_use},
        {Dead::kY, "y", "output_last_use", memory.output_last_use},
        {Dead::kDy, "dy", "output_gradient_last_use", memory.output_gradient_last_use}};
    for (const Declared& own : all) {
      if (own.last_use == LastUse::kForward) {
        RETURN_IF_ERROR(CheckRead(results, own.name, "BackwardInput",
                                  absl::StrCat("memory.", own.field, " is kForward"), own.dead,
                                  Dead::kNothing));
      } else if (own.last_use == LastUse::kBackwardInput) {
        RETURN_IF_ERROR(CheckRead(results, own.name, "BackwardWeight",
                                  absl::StrCat("memory.", own.field, " is kBackwardInput"),
                                  Dead::kNothing, own.dead));
      }
    }
    return CheckRead(results, "the stash", "BackwardWeight",
                     "that is kept until BackwardInput: memory.weight_stash_bytes are kept longer",
                     Dead::kNothing, Dead::kStash);
  }

  absl::Status CheckRead(const Results& results, const char* name, const char* operation,
                         const std::string& why, Dead in_backward_input, Dead in_backward_weight) {
    ASSIGN_OR_RETURN(const Results dead, Compute(0, in_backward_input, in_backward_weight));
    if (dead == results) return absl::OkStatus();
    return Wrong(absl::StrCat(operation, " reads ", name, ", but ", why));
  }

  // The sum of dy y.
  absl::StatusOr<double> WeightedSum() {
    RETURN_IF_ERROR(Forward(0));
    MicroBatch& own = micro_batches_[0];
    double sum = 0.0;
    for (size_t i = 0; i < own.y().floats().size(); ++i) {
      sum += static_cast<double>(own.dy().floats()[i]) * static_cast<double>(own.y().floats()[i]);
    }
    return sum;
  }

  absl::StatusOr<double> CentralDifference(float& value, float step) {
    const float center = value;
    double difference = 0.0;
    for (const auto& [steps, weight] : {std::pair{1, 8.0}, {-1, -8.0}, {2, -1.0}, {-2, 1.0}}) {
      value = center + static_cast<float>(steps) * step;
      const absl::StatusOr<double> sum = WeightedSum();
      value = center;
      RETURN_IF_ERROR(sum.status());
      difference += weight * *sum;
    }
    return difference / (12.0 * static_cast<double>(step));
  }

  absl::Status CheckGradients(const Results& results) {
    if (check_.vocabulary == 0) {
      RETURN_IF_ERROR(CheckGradient("BackwardInput: dx", micro_batches_[0].x(), results.dx));
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (spec_.parameters[i].update.is_average()) continue;  // it has no gradient
      RETURN_IF_ERROR(
          CheckGradient(absl::StrCat("BackwardWeight: the gradient of ", spec_.parameters[i].name),
                        parameters_[i], results.gradients[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckGradient(const std::string& name, Area& variable, const Bytes& found_bytes) {
    std::vector<float> found(found_bytes.size() / sizeof(float));
    std::memcpy(found.data(), found_bytes.data(), found_bytes.size());
    float largest = 0.0F;
    for (const float value : found) largest = std::max(largest, std::abs(value));
    const auto count = static_cast<int64_t>(found.size());
    const int64_t stride = std::max<int64_t>(1, count / kMostDifferences);
    for (int64_t i = 0; i < count; i += stride) {
      const auto index = static_cast<size_t>(i);
      double nearest = std::numeric_limits<double>::infinity();
      for (const float step : {0x1p-6F, 0x1p-8F, 0x1p-10F}) {
        ASSIGN_OR_RETURN(const double expected, CentralDifference(variable.floats()[index], step));
        const double bound =
            check_.tolerance * std::max(static_cast<double>(largest), std::abs(expected)) + 1e-3;
        const double found_value = static_cast<double>(found[index]);
        if (std::abs(found_value - expected) < std::abs(found_value - nearest)) nearest = expected;
        if (std::abs(found_value - expected) <= bound) {
          nearest = found_value;
          break;
        }
      }
      if (nearest == static_cast<double>(found[index])) continue;
      return Wrong(absl::StrFormat("%s has %g in element %d, and Forward changes by %g", name,
                                   found[index], i, nearest));
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccumulates(const Results& results) {
    if (parameters_.empty()) return absl::OkStatus();
    std::vector<std::vector<float>> before;
    for (Area& gradient : gradients_) {
      Draw(-1.0F, 1.0F, gradient.floats());
      before.emplace_back(gradient.floats().begin(), gradient.floats().end());
    }
    RETURN_IF_ERROR(Forward(0));
    RETURN_IF_ERROR(BackwardInput(0));
    RETURN_IF_ERROR(BackwardWeight(0, /*accumulate=*/true));
    for (size_t p = 0; p < gradients_.size(); ++p) {
      std::vector<float> added(before[p].size());
      std::memcpy(added.data(), results.gradients[p].data(), results.gradients[p].size());
      for (size_t i = 0; i < added.size(); ++i) {
        const float expected = before[p][i] + added[i];
        const float bound = 1e-4F * (1.0F + std::abs(added[i]));
        if (std::abs(gradients_[p].floats()[i] - expected) <= bound) continue;
        return Wrong(absl::StrFormat(
            "BackwardWeight with accumulate gives %g in element %d of the gradient of %s, and "
            "adding to what was there gives %g",
            gradients_[p].floats()[i], i, spec_.parameters[p].name, expected));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckJoined(const Results& results) {
    RETURN_IF_ERROR(Forward(0));
    MicroBatch& own = micro_batches_[0];
    Bytes y = own.y().Bytes();
    LayerArgs args = BackwardArgs(own);
    args.stash = own.stash().data();
    if (check_.vocabulary == 0) args.dx = kernels::Float32(own.dx().data(), XShape());
    args.gradients = gradient_tensors_;
    std::vector<const Area*> written = {&own.dx(), &own.stash(), &own.weight_stash(),
                                        &own.gradient_stash()};
    for (const Area& area : gradients_) written.push_back(&area);
    RETURN_IF_ERROR(Perform("Backward", own, args, &Layer::Backward, std::move(written)));
    const std::string what = Difference(results, ResultsOf(own, std::move(y)));
    if (what.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat("Backward gives other bits of ", what,
                              " than BackwardInput and BackwardWeight"));
  }

  const LayerFactory& factory_;
  const LayerCheck& check_;
  std::unique_ptr<kernels::Device> device_;
  kernels::Stream* stream_ = nullptr;
  std::unique_ptr<Layer> layer_;
  LayerSpec spec_;
  std::vector<MicroBatch> micro_batches_;
  std::vector<Area> parameters_, gradients_;
  std::vector<Tensor> parameter_tensors_, gradient_tensors_;
  std::optional<Area> workspace_;
  int workspace_fill_ = 0;
  uint64_t streams_ = 1;
};

}  // namespace

absl::Status CheckLayer(const LayerFactory& factory, const LayerCheck& check) {
  return Checker(factory, check).Run();
}

}  // namespace stagecoach::engine
