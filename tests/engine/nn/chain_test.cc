// When a chain lets one layer leave its final sum, or all that it does, to the next.
#include <memory>
#include <vector>

#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/sequential.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/nn/chain_on_device.h"

namespace stagecoach::engine {
namespace {

using ::testing::IsNull;
using ::testing::Ne;

// Holds what Forward told a layer.
struct Told {
  const void* x = nullptr;
  const void* x_addend = nullptr;
  bool defers_sum = false;
};

// Declares what a test asks for, and only records what it is told.
class Listener final : public Layer, public SumFusion {
 public:
  Listener(const Abilities& abilities, LastUse input_last_use, Told* told)
      : abilities_(abilities), input_last_use_(input_last_use), told_(*told) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    LayerSpec spec;
    spec.output = context.input;
    spec.memory.input_last_use = input_last_use_;
    return spec;
  }
  Abilities abilities() const override { return abilities_; }
  absl::Status Forward(const LayerArgs& args) override { return ForwardFused(args, {}, false); }
  absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend,
                            bool defers_sum) override {
    told_ = {args.x.data, x_addend.data, defers_sum};
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }
  absl::Status BackwardInputFused(const LayerArgs&, const Tensor&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardFused(const LayerArgs&, const BackwardSums&) override {
    return absl::OkStatus();
  }

 private:
  const Abilities abilities_;
  const LastUse input_last_use_;
  Told& told_;
};

// A user's layer, which knows nothing of fusion.
class Stranger final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    return LayerSpec{.output = context.input};
  }
  absl::Status Forward(const LayerArgs&) override { return absl::OkStatus(); }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }
};

// Create layers that can leave their last sum to the next, that can add such a sum, or neither.
LayerFactory Listens(const SumFusion::Abilities& abilities, Told* told,
                     LastUse input_last_use = LastUse::kBackwardWeight) {
  return LayerOf<Listener>(abilities, input_last_use, told);
}
LayerFactory Defers(Told* told) { return Listens({.defers_sum = true}, told); }
LayerFactory Adds(Told* told) { return Listens({.adds_to_x = true}, told); }
LayerFactory Plain(Told* told) { return Listens({}, told); }

void Forward(const std::vector<LayerFactory>& layers) {
  ChainOnDevice({.name = "", .input = Shape{5}, .layers = layers}, /*splits_backward=*/false)
      .Forward();
}

class DeferredSums : public ::testing::Test {
 protected:
  Told first_, second_, third_;
};

TEST_F(DeferredSums, GoToTheNextLayerIfItCanAdd) {
  Forward({Plain(&first_), Defers(&second_), Adds(&third_)});
  EXPECT_TRUE(second_.defers_sum);
  EXPECT_THAT(second_.x, Ne(nullptr));
  EXPECT_EQ(third_.x_addend, second_.x);
}

TEST_F(DeferredSums, MayBeOfTheInputOfTheChain) {
  Forward({Defers(&first_), Adds(&second_)});
  EXPECT_TRUE(first_.defers_sum);
  EXPECT_THAT(first_.x, Ne(nullptr));
  EXPECT_EQ(second_.x_addend, first_.x);
}

TEST_F(DeferredSums, AreNotWhereALayerCannotDeferOrTheNextCannotAdd) {
  const std::vector<LayerFactory> chains[] = {
      {Defers(&first_), Plain(&second_)},
      {Plain(&first_), Adds(&second_)},
      {Defers(&first_), LayerOf<Stranger>(), Adds(&second_)},
      {Defers(&first_), Residual({Plain(&second_), Adds(&third_)})},
      {Adds(&second_), Defers(&first_)},  // nothing follows
  };
  for (const std::vector<LayerFactory>& layers : chains) {
    Forward(layers);
    EXPECT_FALSE(first_.defers_sum);
    EXPECT_THAT(second_.x_addend, IsNull());
  }
}

// The fourth layer's y would be in the slot where the second layer's x is.
TEST_F(DeferredSums, MayBeOfAnInputWhosePlaceTheNextOutputTakes) {
  Told y;
  Forward({Plain(&first_), Listens({.defers_sum = true}, &second_, LastUse::kForward),
           Listens({.adds_to_x = true}, &third_), Listens({}, &y, LastUse::kForward)});
  EXPECT_TRUE(second_.defers_sum);
  EXPECT_EQ(third_.x_addend, second_.x);
  EXPECT_EQ(y.x, second_.x);
}

TEST_F(DeferredSums, PassIntoAResidualLayerThatBeginsWithOneThatAdds) {
  Forward({Defers(&first_), Residual({Adds(&second_), Plain(&third_)})});
  EXPECT_TRUE(first_.defers_sum);
  EXPECT_EQ(second_.x_addend, first_.x);
  EXPECT_THAT(third_.x_addend, IsNull());
}

TEST_F(DeferredSums, OfAResidualLayerAreOfItsInput) {
  Forward({Residual({Plain(&first_)}), Adds(&second_)});
  EXPECT_THAT(first_.x, Ne(nullptr));
  EXPECT_EQ(second_.x_addend, first_.x);
}

// The layer's last sum is completed inside it; nothing outside adds it.
TEST_F(DeferredSums, StayInsideAResidualLayer) {
  Forward({Residual({Plain(&first_), Defers(&second_)}), Adds(&third_)});
  EXPECT_FALSE(second_.defers_sum);
  EXPECT_EQ(third_.x_addend, first_.x);
}

// The layer's y never holds what x is added to.
TEST_F(DeferredSums, AreNotOfAResidualLayerThatKeepsItsInnerOutputElsewhere) {
  Forward({Residual({Linear(5, Activation::kRelu)}), Adds(&first_)});
  EXPECT_THAT(first_.x_addend, IsNull());
}

// What a layer after a norm was told.
struct ToldOfNorm {
  int norms = 0;  // that ran themselves
  const void* x = nullptr;
  float epsilon = 0.0F;  // of the norm that it had to compute; 0: none
  const void* addend = nullptr;
};

class CountedNorm final : public Layer, public PlainNorm {
 public:
  explicit CountedNorm(ToldOfNorm* told) : told_(*told) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    LayerSpec spec;
    spec.output = context.input;
    spec.memory.input_last_use = LastUse::kForward;
    return spec;
  }
  kernels::InputNorm NormOf(absl::Span<const Tensor>) const override { return {.epsilon = 0.25F}; }
  absl::Status Forward(const LayerArgs&) override {
    ++told_.norms;
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }

 private:
  ToldOfNorm& told_;
};

class NormTaker final : public Layer, public NormFusion, public TailFusion {
 public:
  NormTaker(bool takes_norm, ToldOfNorm* told) : takes_norm_(takes_norm), told_(*told) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    return LayerSpec{.output = context.input};
  }
  bool takes_norm() const override { return takes_norm_; }
  bool takes_tail() const override { return takes_norm_; }
  absl::Status Forward(const LayerArgs& args) override { return ForwardWithNorm(args, {}, {}); }
  absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) override {
    return ForwardWithNorm(args, {}, tail);
  }
  absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                               const Tail& tail) override {
    told_.x = args.x.data;
    told_.epsilon = norm.epsilon == kernels::InputNorm().epsilon ? 0.0F : norm.epsilon;
    told_.addend = tail.addend.data;
    return absl::OkStatus();
  }
  absl::Status BackwardInput(const LayerArgs&) override { return absl::OkStatus(); }
  absl::Status BackwardWithTail(const LayerArgs&, const TailGradient&) override {
    return absl::OkStatus();
  }

 private:
  const bool takes_norm_;
  ToldOfNorm& told_;
};

class JoinedNorms : public ::testing::Test {
 protected:
  LayerFactory Norm() { return LayerOf<CountedNorm>(&told_); }
  LayerFactory Taker(bool takes_norm = true) { return LayerOf<NormTaker>(takes_norm, &told_); }
  void ExpectApart(const std::vector<LayerFactory>& layers) {
    Forward(layers);
    EXPECT_EQ(told_.epsilon, 0.0F);
    EXPECT_THAT(told_.x, Ne(nullptr));
  }

  Told before_, after_;
  ToldOfNorm told_;
};

// The block's sum comes with it, so that x is also what is added.
TEST_F(JoinedNorms, AreLeftToTheNextLayerWithTheirInput) {
  Forward({Plain(&before_), Residual({Norm(), Taker()}), Adds(&after_)});
  EXPECT_EQ(told_.norms, 0);
  EXPECT_EQ(told_.epsilon, 0.25F);
  EXPECT_THAT(told_.x, Ne(nullptr));
  EXPECT_EQ(told_.x, told_.addend);
  EXPECT_THAT(after_.x_addend, IsNull());
}

TEST_F(JoinedNorms, RunThemselvesBeforeALayerThatDoesNotTakeThem) {
  ExpectApart({Plain(&before_), Norm(), Taker(false)});
  EXPECT_EQ(told_.norms, 1);
  ExpectApart({Norm(), LayerOf<Stranger>(), Taker()});
  EXPECT_EQ(told_.norms, 2);
}

TEST_F(JoinedNorms, RunThemselvesIfTheyHaveToAddASum) {
  ExpectApart({Defers(&before_), LayerNorm(), Taker()});
  EXPECT_TRUE(before_.defers_sum);
}

TEST_F(JoinedNorms, RunThemselvesIfTheirInputIsWhereTheNextLayerWrites) {
  ExpectApart({Plain(&before_), Norm(), Taker(), Listens({}, &after_, LastUse::kForward)});
  EXPECT_EQ(told_.norms, 1);
}

}  // namespace
}  // namespace stagecoach::engine
