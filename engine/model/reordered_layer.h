#ifndef STAGECOACH_ENGINE_MODEL_REORDERED_LAYER_H_
#define STAGECOACH_ENGINE_MODEL_REORDERED_LAYER_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "engine/model/layer.h"
#include "kernels/ops/transpose.h"

namespace stagecoach::engine {

// Which order `layer` takes the images in that the context gives it, if that is another one.
std::optional<kernels::ImageOrder> OrderToTake(const Layer& layer, const LayerContext& context);

// A layer between images of another order (kernels::ImageOrder) than it has itself: it works on
// copies in the workspace, which are made anew in each call that reads them, so that nothing is
// kept twice. The bits are those of the layer alone.
class ReorderedLayer final : public Layer {
 public:
  // `takes`: the order of the x, and of the skip, that `layer` is given. It gives y in
  // LayerContext::output_order, if that is said.
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
    // Null: it has the order of outside. Into the layer's order, and out of it.
    std::unique_ptr<kernels::TransposeOp> enter, leave;
    int64_t value = 0, gradient = 0;  // where in the workspace the copies are
  };

  absl::StatusOr<Images> Between(const LayerContext& context, const Shape& outside,
                                 const Shape& inside);
  void Place(int64_t rows, kernels::DType type, Images& images, int64_t& workspace) const;
  // The copy at `offset`, with the contents of `outside`; `outside` where there is none to make.
  absl::StatusOr<Tensor> Entered(const LayerArgs& args, const Images& images, const Tensor& outside,
                                 int64_t offset) const;
  // Where the layer is to write what becomes `outside`.
  static Tensor Inside(const LayerArgs& args, const Images& images, const Tensor& outside,
                       int64_t offset);
  static absl::Status Leave(const LayerArgs& args, const Images& images, const Tensor& inside,
                            const Tensor& outside);

  // One of the backward calls, which reads x and y if they are still kept for `use`.
  template <typename Call>
  absl::Status CallBackward(const LayerArgs& args, LastUse use, Call call) const;

  const std::unique_ptr<Layer> layer_;
  const kernels::ImageOrder takes_;
  Images x_, y_, skip_;
  LastUse input_last_use_ = LastUse::kForward, output_last_use_ = LastUse::kForward;
  LastUse output_gradient_last_use_ = LastUse::kForward;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_REORDERED_LAYER_H_
