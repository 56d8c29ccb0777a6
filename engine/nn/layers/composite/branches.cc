#include "engine/nn/layers/composite/branches.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/layers/composite/branch.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using partition::AlignTensor;

// Returns how many of n > 1 addends are in the left half of their tree.
size_t LeftHalf(size_t n) { return std::bit_floor(n - 1); }

// Returns how many sums are waiting for their right half, at most, besides the outermost.
int64_t WaitingSums(size_t addends) {
  if (addends == 1) return 0;
  const size_t left = LeftHalf(addends);
  return std::max(WaitingSums(left), 1 + WaitingSums(addends - left));
}

class BranchesLayer final : public Layer {
 public:
  explicit BranchesLayer(std::vector<std::vector<LayerFactory>> branches)
      : factories_(std::move(branches)) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (factories_.empty()) {
      return absl::InvalidArgumentError("branches: needs at least one branch");
    }
    LayerSpec spec;
    spec.description = "branches(";
    RETURN_IF_ERROR(PrepareBranches(context, spec));
    absl::StrAppend(&spec.description, ")");
    elementwise_ = &context.device.ops().elementwise();
    x_ = {nullptr, context.device.activation_type(), context.input.Batched(context.rows)};
    y_ = {nullptr, x_.dtype, spec.output.Batched(context.rows)};
    const auto sums = static_cast<double>(branches_.size() - 1);
    const auto add = [&](const Tensor& addend, partition::Work& sum) {
      const double elements = sums * static_cast<double>(addend.elements());
      AddWork({elements, 3.0 * sums * static_cast<double>(addend.bytes())}, sum);
    };
    add(y_, spec.forward);
    if (!spec.takes_ids) add(x_, spec.backward_input);
    spec.memory.input_last_use = LastUse::kForward;
    spec.memory.output_gradient_last_use = LastUse::kBackwardInput;
    for (Branch& branch : branches_) branch.PlaceIn(spec.memory, y_.bytes());
    sums_ = spec.memory.workspace_bytes;
    sum_bytes_ = AlignTensor(std::max(x_.bytes(), y_.bytes()));
    spec.memory.workspace_bytes += WaitingSums(branches_.size()) * sum_bytes_;
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  absl::Status Forward(const LayerArgs& args) override {
    return SumOfBranches(args, args.y, [&](const Branch& branch, const Tensor& y) {
      LayerArgs own = branch.Args(args);
      own.y = branch.Output(args, y);
      const absl::Status done = branch.chain.Forward(own);
      return done.ok() ? absl::StatusOr<Tensor>(own.y) : done;
    });
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return SumOfGradients(args, [](const Branch& branch, const LayerArgs& own) {
      return branch.chain.BackwardInput(own);
    });
  }

  absl::Status BackwardWeight(const LayerArgs& args) override {
    for (const Branch& branch : branches_) {
      RETURN_IF_ERROR(branch.chain.BackwardWeight(BackwardArgs(branch, args), AfterNoLayer));
    }
    return absl::OkStatus();
  }

  absl::Status Backward(const LayerArgs& args) override {
    return SumOfGradients(args, [](const Branch& branch, const LayerArgs& own) {
      return branch.chain.Backward(own, AfterNoLayer);
    });
  }

 private:
  // Runs a branch, with its result at the given place or elsewhere, and returns where that is.
  using RunBranch = absl::FunctionRef<absl::StatusOr<Tensor>(const Branch&, const Tensor& result)>;

  absl::Status PrepareBranches(const LayerContext& context, LayerSpec& spec) {
    LayerContext inside = context;
    inside.feeds_cross_entropy = false;
    inside.output_order = std::nullopt;
    int layers = 0;
    for (size_t i = 0; i < factories_.size(); ++i) {
      if (factories_[i].empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("branches: branch ", i, " needs at least one layer"));
      }
      if (i > 0) absl::StrAppend(&spec.description, " | ");
      absl::StatusOr<Branch> branch =
          PrepareBranch(factories_[i], inside, layers, absl::StrCat(i, "."), spec);
      if (!branch.ok()) return base::Annotate(branch.status(), absl::StrCat("branch ", i));
      layers += branch->listed;
      const Shape& output = branch->chain.output();
      const bool takes_ids = branch->chain.spec(0).takes_ids;
      if (i == 0) {
        spec.output = output;
        spec.takes_ids = takes_ids;
        // All have their images in the order of the first.
        inside.output_order = output.image_order();
      }
      if (output != spec.output) {
        return absl::InvalidArgumentError(absl::StrCat(
            "branches: branch 0 turns ", context.input.ToString(), " into ", spec.output.ToString(),
            ", and branch ", i, " into ", output.ToString(), "; the shapes must be equal"));
      }
      if (takes_ids != spec.takes_ids) {
        return absl::InvalidArgumentError(absl::StrCat("branches: of branch 0 and branch ", i,
                                                       ", one takes ids and one takes numbers"));
      }
      branches_.push_back(*std::move(branch));
    }
    return absl::OkStatus();
  }

  // Nothing may run aside, since the next branch uses the same scratch.
  LayerArgs BackwardArgs(const Branch& branch, const LayerArgs& args) const {
    LayerArgs own = branch.Args(args);
    own.y = branch.Output(args, y_);
    own.aside = nullptr;
    return own;
  }

  absl::Status SumOfGradients(
      const LayerArgs& args,
      absl::FunctionRef<absl::Status(const Branch&, const LayerArgs&)> backward) const {
    return SumOfBranches(args, args.dx,
                         [&](const Branch& branch, const Tensor& dx) -> absl::StatusOr<Tensor> {
                           LayerArgs own = BackwardArgs(branch, args);
                           own.dx = dx;
                           RETURN_IF_ERROR(backward(branch, own));
                           return dx;
                         });
  }

  // Runs all branches in order, and leaves the sum of their results at `sum`, if that is a tensor.
  absl::Status SumOfBranches(const LayerArgs& args, const Tensor& sum, RunBranch run) const {
    ASSIGN_OR_RETURN(const Tensor result, SumOf(0, branches_.size(), args, sum, 0, run));
    if (sum.empty() || result.data == sum.data) return absl::OkStatus();
    return elementwise_->Copy(args.stream, result, sum);
  }

  // The sum of `count` branches from `first` on. Sums that wait for their right half lie in the
  // workspace, `waiting` of them already.
  absl::StatusOr<Tensor> SumOf(size_t first, size_t count, const LayerArgs& args, const Tensor& sum,
                               int64_t waiting, RunBranch run) const {
    if (count == 1) return run(branches_[first], sum);
    const size_t left_count = LeftHalf(count);
    ASSIGN_OR_RETURN(const Tensor left, SumOf(first, left_count, args, sum, waiting, run));
    Tensor place = sum;
    if (!sum.empty()) place.data = At(args.workspace, sums_ + waiting * sum_bytes_);
    ASSIGN_OR_RETURN(const Tensor right,
                     SumOf(first + left_count, count - left_count, args, place, waiting + 1, run));
    if (!sum.empty()) RETURN_IF_ERROR(elementwise_->Add(args.stream, left, right, sum));
    return sum;
  }

  const std::vector<std::vector<LayerFactory>> factories_;
  std::vector<Branch> branches_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
  Tensor x_, y_;           // without data
  int64_t sums_ = 0;       // in the workspace: sums that wait for their right half
  int64_t sum_bytes_ = 0;  // of each
};

}  // namespace

LayerFactory Branches(std::vector<std::vector<LayerFactory>> branches) {
  return LayerOf<BranchesLayer>(std::move(branches));
}

const LayerType kBranchesType = {
    .name = "branches",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      std::vector<ParsedLayer> branches;
      RETURN_IF_ERROR(entry.parse_lists_inside("branches", branches));
      std::vector<std::vector<LayerFactory>> factories;
      for (ParsedLayer& branch : branches) {
        factories.push_back(std::move(branch.factories));
        layer.layers += branch.layers;
      }
      layer.factories = {Branches(std::move(factories))};
      layer.output_of = std::move(branches.front().output_of);
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
