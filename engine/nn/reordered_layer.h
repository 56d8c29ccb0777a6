#ifndef STAGECOACH_ENGINE_NN_REORDERED_LAYER_H_
#define STAGECOACH_ENGINE_NN_REORDERED_LAYER_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/nn/layer.h"
#include "kernels/ops/transpose.h"

namespace stagecoach::engine {

// Returns the order in which `layer` takes the images of the context, if that differs from theirs.
std::optional<kernels::ImageOrder> OrderToTake(const Layer& layer, const LayerContext& context);

// A layer between images of another order (kernels::ImageOrder) than its own: it works on copies in
// the workspace, which are made anew in each call that reads them, so that nothing is kept twice.
// The bits are those of the layer alone.
class ReorderedLayer final : public Layer {
 public:
  // `takes`: the order of x, and of the skip, that `layer` receives. Its y is in
  // LayerContext::output_order, if that is set.
  ReorderedLayer(std::unique_ptr<Layer> layer, kernels::ImageOrder takes)
      : layer_(std::move(layer)), takes_(takes) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override;
  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }
  absl::Status Forward(const LayerArgs& args) override;
  absl::Status BackwardInput(const LayerArgs& args) override;
  absl::Status BackwardWeight(const LayerArgs& args) override;
  absl::Status Backward(const LayerArgs& args) override;

 private:
  // One of the tensors that the layer works on: x and dx, y and dy, or the skip and its gradient.
  struct Images {
    Shape inside;  // of one sample, as the layer has it
    // Transpose into the layer's order, and out of it. Null: the order is the same outside.
    std::unique_ptr<kernels::TransposeOp> enter, leave;
    int64_t value = 0, gradient = 0;  // offsets of the copies in the workspace
  };

  absl::StatusOr<Images> Between(const LayerContext& context, const Shape& outside,
                                 const Shape& inside);
  void Place(int64_t rows, kernels::DType type, Images& images, int64_t& workspace) const;
  // Returns the copy at `offset`, with the contents of `outside`; `outside` itself if no copy is
  // needed.
  absl::StatusOr<Tensor> Entered(const LayerArgs& args, const Images& images, const Tensor& outside,
                                 int64_t offset) const;
  // Returns where the layer is to write what becomes `outside`.
  static Tensor Inside(const LayerArgs& args, const Images& images, const Tensor& outside,
                       int64_t offset);
  static absl::Status Leave(const LayerArgs& args, const Images& images, const Tensor& inside,
                            const Tensor& outside);

  // Runs one of the backward calls, which reads x and y if they are still kept for `use`.
  template <typename Call>
  absl::Status CallBackward(const LayerArgs& args, LastUse use, Call call) const;

  const std::unique_ptr<Layer> layer_;
  const kernels::ImageOrder takes_;
  Images x_, y_, skip_;
  LastUse input_last_use_ = LastUse::kForward, output_last_use_ = LastUse::kForward;
  LastUse output_gradient_last_use_ = LastUse::kForward;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_REORDERED_LAYER_H_
