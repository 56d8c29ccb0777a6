#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/models/networks.h"
#include "tests/engine/nn/chain_on_device.h"
#include "tests/testing/close_to.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::Gamma;

double LargestMagnitude(const std::vector<double>& values) {
  double largest = 0.0;
  for (double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

class LayerGradients : public ::testing::TestWithParam<Network> {};

// Calls the test with a chain whose backward operations are fused, with one whose are split, and
// with values of its variables.
void ForFusedAndSplit(
    const Network& network,
    absl::FunctionRef<void(ChainOnDevice& chain, const std::vector<double>& variables)> test) {
  for (bool splits_backward : {false, true}) {
    SCOPED_TRACE(splits_backward ? "split" : "fused");
    ChainOnDevice chain(network, splits_backward);
    test(chain, chain.RandomVariables());
  }
}

void ForwardAndBackward(ChainOnDevice& chain, const std::vector<double>& variables) {
  chain.SetVariables(variables);
  chain.Forward();
  chain.Backward();
}

TEST_P(LayerGradients, MatchFiniteDifferences) {
  ForFusedAndSplit(GetParam(), [](ChainOnDevice& chain, const std::vector<double>& variables) {
    const std::vector<double> expected = NumericalGradients(chain, variables);
    const double bound = NumericalBound(chain);
    ASSERT_GT(LargestMagnitude(expected), 20.0 * bound) << "the comparison would see nothing";
    ForwardAndBackward(chain, variables);
    EXPECT_THAT(chain.Gradients(), CloseTo(expected, bound));
  });
}

TEST_P(LayerGradients, AreAddedToWhatThereIsIfAsked) {
  ForFusedAndSplit(GetParam(), [](ChainOnDevice& chain, const std::vector<double>& variables) {
    ForwardAndBackward(chain, variables);
    std::vector<double> expected = chain.ParameterGradients();

    chain.SetVariables(variables);
    chain.Forward();
    chain.SetParameterGradients(std::vector<double>(expected.size(), 0.5));
    chain.Backward(0, {.accumulate = true});
    for (double& value : expected) value += 0.5;
    // A gradient sums one term per row, of at most 8 each, and the start, in two orders.
    const double bound = 2.0 * Gamma(ChainOnDevice::kRows + 1) * (ChainOnDevice::kRows * 8.0 + 0.5);
    EXPECT_THAT(chain.ParameterGradients(), CloseTo(expected, bound));
  });
}

TEST_P(LayerGradients, HaveTheSameBitsFusedAndSplit) {
  std::vector<std::vector<double>> gradients;
  ForFusedAndSplit(GetParam(), [&](ChainOnDevice& chain, const std::vector<double>& variables) {
    ForwardAndBackward(chain, variables);
    gradients.push_back(chain.Gradients());
  });
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST_P(LayerGradients, OfParametersAreTheSameBitsWithoutDx) {
  ForFusedAndSplit(GetParam(), [](ChainOnDevice& chain, const std::vector<double>& variables) {
    ForwardAndBackward(chain, variables);
    const std::vector<double> with_dx = chain.ParameterGradients();

    chain.SetVariables(variables);
    chain.Forward();
    chain.SetParameterGradients(std::vector<double>(with_dx.size(), 0.0));
    chain.Backward(0, {.want_dx = false});
    EXPECT_EQ(chain.ParameterGradients(), with_dx);
  });
}

// Recomputation repeats the pass on the same input, over what the first pass or a backward pass
// left.
TEST_P(LayerGradients, AreTheSameBitsAfterForwardOnceMore) {
  ForFusedAndSplit(GetParam(), [](ChainOnDevice& chain, const std::vector<double>& variables) {
    chain.SetVariables(variables);
    chain.Forward();
    const std::vector<double> input = chain.Input();
    chain.Backward();
    const std::vector<double> once = chain.Gradients();

    chain.SetVariables(variables);
    EXPECT_EQ(chain.Input(), input) << "Forward changed x";
    chain.Forward();
    chain.Forward();
    chain.Backward();
    EXPECT_EQ(chain.Gradients(), once);
  });
}

// All memory that the first pass does not keep is gone.
TEST_P(LayerGradients, AreTheSameBitsWithRecomputation) {
  for (const bool splits_backward : {false, true}) {
    SCOPED_TRACE(splits_backward ? "split" : "fused");
    ChainOnDevice once(GetParam(), splits_backward);
    const std::vector<double> variables = once.RandomVariables();
    ForwardAndBackward(once, variables);
    std::vector<std::vector<int>> choices(1);  // all layers, then each alone
    for (int layer = 0; layer < once.chain().size(); ++layer) {
      if (once.chain().spec(layer).takes_skip) continue;
      choices.front().push_back(layer);
      choices.push_back({layer});
    }
    for (const std::vector<int>& recomputed : choices) {
      SCOPED_TRACE(::testing::PrintToString(recomputed));
      ChainOnDevice again(GetParam(), splits_backward, recomputed);
      ForwardAndBackward(again, variables);
      EXPECT_EQ(again.Gradients(), once.Gradients());
    }
  }
}

// Whatever a layer keeps between its calls must be in the micro-batch's own memory.
TEST_P(LayerGradients, KeepMicroBatchesInFlightApart) {
  ForFusedAndSplit(GetParam(), [](ChainOnDevice& chain, const std::vector<double>& variables) {
    ForwardAndBackward(chain, variables);
    const std::vector<double> alone = chain.Gradients();

    const size_t other = chain.AddMicroBatch();
    std::vector<double> other_input = variables;
    std::reverse(other_input.begin(), other_input.end());
    chain.SetVariables(variables);
    chain.SetInput(other, other_input);
    chain.Forward();
    chain.Forward(other);
    chain.Backward();
    EXPECT_EQ(chain.Gradients(), alone);
  });
}

// Returns the variables, or gradients, of images of shape [channels, height, width] in the order
// with channels last.
std::vector<double> WithChannelsLast(const Shape& image, std::vector<double> variables) {
  const int64_t channels = image.dim(0), area = image.dim(1) * image.dim(2);
  std::vector<double> reordered = std::move(variables);
  const std::vector<double> first = reordered;
  for (int64_t i = 0; i < ChainOnDevice::kRows * channels * area; ++i) {
    const int64_t sample = i / (channels * area), c = i / area % channels, place = i % area;
    reordered[static_cast<size_t>((sample * area + place) * channels + c)] =
        first[static_cast<size_t>(i)];
  }
  return reordered;
}

// If the output is not an image, dy is the same in both orders.
TEST_P(LayerGradients, AreTheSameBitsForImagesInTheOtherOrder) {
  using kernels::ImageOrder;
  Network first = GetParam();
  if (first.input.rank() != 3) return;
  first.input = first.input.InOrder(ImageOrder::kChannelsFirst);
  Network last = first;
  last.input = last.input.InOrder(ImageOrder::kChannelsLast);
  for (const bool splits_backward : {false, true}) {
    ChainOnDevice chain(first, splits_backward), reordered(last, splits_backward);
    if (chain.chain().output().rank() == 3) return;
    const std::vector<double> variables = chain.RandomVariables();
    ForwardAndBackward(chain, variables);
    ForwardAndBackward(reordered, WithChannelsLast(first.input, variables));
    EXPECT_EQ(reordered.Gradients(), WithChannelsLast(first.input, chain.Gradients()));
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, LayerGradients, ::testing::ValuesIn(Networks()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(ImageNetworks, LayerGradients, ::testing::ValuesIn(ImageNetworks()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace stagecoach::engine
