// Where a chain lets one layer leave the sum that ends it to the next.
#include "engine/model/chain.h"

#include <memory>
#include <vector>

#include "engine/model/layers/linear.h"
#include "engine/model/layers/residual.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/chain_on_device.h"

namespace stagecoach::engine {
namespace {

using ::testing::IsNull;
using ::testing::Ne;

// What Forward told a layer.
struct Told {
  const void* x = nullptr;
  const void* x_addend = nullptr;
  bool defers_add = false;
};

// Declares what a test asks for, and does nothing but write down what it is told.
class Listener final : public Layer {
 public:
  Listener(const LayerSpec& declared, Told* told) : declared_(declared), told_(*told) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    LayerSpec spec = declared_;
    spec.output = context.input;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    told_ = {args.x.data, args.x_addend.data, args.defers_add};
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }

 private:
  const LayerSpec declared_;
  Told& told_;
};

// Layers that can leave their last sum to the next, that can add such a sum, and neither.
LayerFactory Defers(Told* told) {
  return LayerOf<Listener>(LayerSpec{.can_defer_add = true}, told);
}
LayerFactory Adds(Told* told) { return LayerOf<Listener>(LayerSpec{.adds_to_x = true}, told); }
LayerFactory Plain(Told* told) { return LayerOf<Listener>(LayerSpec{}, told); }

void Forward(const std::vector<LayerFactory>& layers) {
  ChainOnDevice({.name = "", .input = Shape{5}, .layers = layers}, /*splits_backward=*/false)
      .Forward();
}

class DeferredAdds : public ::testing::Test {
 protected:
  Told first_, second_, third_;
};

TEST_F(DeferredAdds, GoToTheNextLayerIfItCanAdd) {
  Forward({Plain(&first_), Defers(&second_), Adds(&third_)});
  EXPECT_TRUE(second_.defers_add);
  EXPECT_THAT(second_.x, Ne(nullptr));
  EXPECT_EQ(third_.x_addend, second_.x);
}

TEST_F(DeferredAdds, MayBeOfTheInputOfTheChain) {
  Forward({Defers(&first_), Adds(&second_)});
  EXPECT_TRUE(first_.defers_add);
  EXPECT_THAT(first_.x, Ne(nullptr));
  EXPECT_EQ(second_.x_addend, first_.x);
}

TEST_F(DeferredAdds, AreNotForALayerThatCannotAdd) {
  Forward({Defers(&first_), Plain(&second_)});
  EXPECT_FALSE(first_.defers_add);
  EXPECT_THAT(second_.x_addend, IsNull());
}

TEST_F(DeferredAdds, AreNotAskedOfALayerThatCannotDefer) {
  Forward({Plain(&first_), Adds(&second_)});
  EXPECT_FALSE(first_.defers_add);
  EXPECT_THAT(second_.x_addend, IsNull());
}

TEST_F(DeferredAdds, NeverLeaveAChain) {
  Forward({Adds(&first_), Defers(&second_)});
  EXPECT_FALSE(second_.defers_add);
}

// The third layer's y is in the slot where the second layer's x was.
TEST_F(DeferredAdds, AreNotOfAnInputInTheWorkspace) {
  const LayerSpec forgets_x{.input_last_use = LastUse::kForward, .can_defer_add = true};
  Forward({Plain(&first_), LayerOf<Listener>(forgets_x, &second_), Adds(&third_)});
  EXPECT_FALSE(second_.defers_add);
  EXPECT_THAT(third_.x_addend, IsNull());
}

TEST_F(DeferredAdds, PassIntoAResidualLayerThatBeginsWithOneThatAdds) {
  Forward({Defers(&first_), Residual({Adds(&second_), Plain(&third_)})});
  EXPECT_TRUE(first_.defers_add);
  EXPECT_EQ(second_.x_addend, first_.x);
  EXPECT_THAT(third_.x_addend, IsNull());
}

TEST_F(DeferredAdds, DoNotPassIntoAResidualLayerThatBeginsWithAnother) {
  Forward({Defers(&first_), Residual({Plain(&second_), Adds(&third_)})});
  EXPECT_FALSE(first_.defers_add);
  EXPECT_THAT(second_.x_addend, IsNull());
}

TEST_F(DeferredAdds, OfAResidualLayerAreOfItsInput) {
  Forward({Residual({Plain(&first_)}), Adds(&second_)});
  EXPECT_THAT(first_.x, Ne(nullptr));
  EXPECT_EQ(second_.x_addend, first_.x);
}

// That layer's last sum ends inside; it is for nobody outside to add.
TEST_F(DeferredAdds, StayInsideAResidualLayer) {
  Forward({Residual({Plain(&first_), Defers(&second_)}), Adds(&third_)});
  EXPECT_FALSE(second_.defers_add);
  EXPECT_EQ(third_.x_addend, first_.x);
}

// Its y never holds what x is to be added to.
TEST_F(DeferredAdds, AreNotOfAResidualLayerThatKeepsItsInnerOutputElsewhere) {
  Forward({Residual({Linear(5, Activation::kRelu)}), Adds(&first_)});
  EXPECT_THAT(first_.x_addend, IsNull());
}

}  // namespace
}  // namespace stagecoach::engine
