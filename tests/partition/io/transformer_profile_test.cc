#include "partition/io/transformer_profile.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/stage_memory.h"
#include "partition/io/transformer_file.h"
#include "partition/io/transformer_times.h"
#include "schedule/memory/memory_plan.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using ::testing::StartsWith;

constexpr double kGiB = double{1 << 30};

// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", table 1: all have a vocabulary size of 51,200 and sequences of 2,048.
TEST(TransformerProfile, ParametersAreThosePublished) {
  struct Published {
    double billions;
    int64_t heads, hidden, layers;
  };
  for (const Published& model :
       {Published{1.7, 24, 2304, 24}, Published{3.6, 32, 3072, 30}, Published{7.5, 32, 4096, 36},
        Published{18.4, 48, 6144, 40}, Published{39.1, 64, 8192, 48},
        Published{76.1, 80, 10240, 60}, Published{145.6, 96, 12288, 80},
        Published{310.1, 128, 16384, 96}, Published{529.6, 128, 20480, 105},
        Published{1008.0, 160, 25600, 128}}) {
    const Transformer transformer = {.layers = model.layers,
                                     .hidden = model.hidden,
                                     .heads = model.heads,
                                     .sequence = 2048,
                                     .vocabulary = 51200};
    ASSERT_OK(CheckTransformer(transformer));
    const Profile profile = TransformerProfile(transformer, "");
    int64_t count = 0;
    for (const LayerCost& layer : profile.sizes[0].layers) count += layer.parameters;
    EXPECT_EQ(std::round(static_cast<double>(count) / 1e8) / 10, model.billions);
    // Equation 2 of that paper, 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), and the last norm.
    EXPECT_EQ(count, model.layers * (12 * model.hidden * model.hidden + 13 * model.hidden) +
                         (51200 + 2048) * model.hidden + 2 * model.hidden);
  }
}

// The 22B and 175B models of Korthikanti et al. 2022, "Reducing Activation Recomputation in Large
// Transformer Models", on 8 devices per layer.
Transformer Korthikanti22B() {
  return {.layers = 48,
          .hidden = 6144,
          .heads = 64,
          .sequence = 2048,
          .vocabulary = 51200,
          .micro_batch_rows = {4},
          .tensor_parallel = 8};
}
Transformer Korthikanti175B() {
  return {.layers = 96,
          .hidden = 12288,
          .heads = 96,
          .sequence = 2048,
          .vocabulary = 51200,
          .micro_batch_rows = {1},
          .tensor_parallel = 8};
}

// The first stage, by the paper's formulas: L layers' worth for 22B, which has one stage; for 175B,
// with 8 stages of 3 chunks each, L (1 + (p - 1) / (p v)).
TEST(TransformerProfile, ActivationsAreThosePublished) {
  Transformer model = Korthikanti22B();
  EXPECT_EQ(48 * ActivationBytes(model, 4) / kGiB, 59.25);
  model.sequence_parallel = true;
  model.attention = Attention::kRecomputed;
  EXPECT_EQ(48 * ActivationBytes(model, 4) / kGiB, 9.5625);

  model = Korthikanti175B();
  const double layers = 96 * (1 + 7.0 / 24);
  EXPECT_EQ(layers * ActivationBytes(model, 1) / kGiB, 66.84375);
  model.sequence_parallel = true;
  model.attention = Attention::kFlash;
  EXPECT_EQ(layers * ActivationBytes(model, 1) / kGiB, 12.3515625);
}

TEST(TransformerProfile, ActivationsFollowTheFormulas) {
  Transformer model = {.layers = 2, .hidden = 96, .heads = 4, .sequence = 32, .vocabulary = 100};
  const int64_t sbh = 32 * 3 * 96, as2b = 4 * 32 * 32 * 3;
  EXPECT_EQ(ActivationBytes(model, 3), 34 * sbh + 5 * as2b);
  model.tensor_parallel = 4;
  EXPECT_EQ(ActivationBytes(model, 3), 10 * sbh + 24 * sbh / 4 + 5 * as2b / 4);
  model.sequence_parallel = true;
  EXPECT_EQ(ActivationBytes(model, 3), (34 * sbh + 5 * as2b) / 4);
  model.attention = Attention::kRecomputed;
  EXPECT_EQ(ActivationBytes(model, 3), 34 * sbh / 4);
  model = {.layers = 2,
           .hidden = 96,
           .heads = 4,
           .sequence = 32,
           .vocabulary = 100,
           .bytes_per_value = 4};
  EXPECT_EQ(ActivationBytes(model, 3), 66 * sbh + 9 * as2b) << "masks stay at 1 byte";
}

int64_t KeptUntilBackward(const schedule::StageMemory& stage) {
  return stage.input_bytes + stage.stash_bytes + stage.weight_stash_bytes;
}

// A stage of the profile keeps what the formulas say, with inputs between layers counted once.
TEST(TransformerProfile, AStageKeepsWhatIsPublished) {
  for (const bool sequence_parallel : {false, true}) {
    for (const Attention attention : {Attention::kStored, Attention::kRecomputed}) {
      Transformer model = Korthikanti22B();
      model.sequence_parallel = sequence_parallel;
      model.attention = attention;
      const Profile profile = TransformerProfile(model, "22B");
      ASSERT_OK(CheckProfile(profile));
      const std::vector<LayerCost>& layers = profile.sizes[0].layers;
      const schedule::StageMemory stage =
          LayOutStage(MemoryOf(absl::MakeSpan(layers).subspan(1, 48)), {}, {});
      EXPECT_EQ(KeptUntilBackward(stage), 48 * ActivationBytes(model, 4));

      std::vector<LayerCost> recomputed;
      for (int i = 1; i <= 48; ++i) recomputed.push_back(Recomputed(layers[i]));
      const int64_t share = sequence_parallel ? 8 : 1;
      EXPECT_EQ(KeptUntilBackward(LayOutStage(MemoryOf(recomputed), {}, {})),
                48 * 2 * int64_t{2048 * 4} * 6144 / share)
          << "2 s b h per layer";
    }
  }
}

// Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 1: 32 s b h are kept from B until W,
// for W to multiply.
TEST(TransformerProfile, WeightGradientsNeedWhatIsPublished) {
  const Transformer model = {
      .layers = 1, .hidden = 64, .heads = 2, .sequence = 16, .vocabulary = 10};
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  const schedule::StageMemory stage =
      LayOutStage(MemoryOf(absl::MakeSpan(layers).subspan(1, 1)), {}, {.splits_backward = true});
  EXPECT_EQ(stage.output_gradient_last_use, schedule::LastUse::kBackwardWeight);
  EXPECT_EQ(stage.weight_stash_bytes + stage.gradient_stash_bytes + stage.output_gradient_bytes,
            32 * 16 * 64);
}

// Korthikanti et al. 2022: with one stage, 4 s b h (1 + v / h) / t in addition to the layers, and
// the mask of the embedding's dropout.
TEST(TransformerProfile, EmbeddingAndHeadKeepWhatIsPublished) {
  Transformer model = Korthikanti22B();
  model.sequence_parallel = true;
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  const int64_t sb = 2048 * 4;
  EXPECT_EQ(KeptUntilBackward(LayOutStage(MemoryOf(absl::MakeSpan(layers).last(1)), {}, {})),
            4 * sb * (6144 + 51200) / 8);
  EXPECT_EQ(layers[0].memory.stash_bytes, sb * 6144 / 8);
}

// Returns the flops of F, B and W of all layers at the first size.
double FlopsOf(const Transformer& model) {
  double flops = 0;
  const Profile profile = TransformerProfile(model, "");
  for (const LayerCost& layer : profile.sizes[0].layers) flops += layer.flops;
  return flops;
}

// Narayanan et al. 2021, equation 3, without the repeated F: 72 instead of 96.
TEST(TransformerProfile, FlopsFollowTheFormula) {
  const Transformer model = {.layers = 80,
                             .hidden = 12288,
                             .heads = 96,
                             .sequence = 2048,
                             .vocabulary = 51200,
                             .micro_batch_rows = {5}};
  const double b = 5, s = 2048, l = 80, h = 12288, v = 51200;
  EXPECT_NEAR(FlopsOf(model) / (72 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h))), 1,
              1e-12);
  const double forward_flops_of_layers = 24 * b * s * l * h * h * (1 + s / (6 * h));
  EXPECT_NEAR((FlopsOf(model) + forward_flops_of_layers) /
                  (96 * b * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h))),
              1, 1e-12);
}

TEST(TransformerProfile, TimesAreFlopsOverSpeed) {
  Transformer model = {.layers = 4,
                       .hidden = 64,
                       .heads = 2,
                       .sequence = 16,
                       .vocabulary = 10,
                       .micro_batch_rows = {1, 3},
                       .tensor_parallel = 2,
                       .device_teraflops = 10};
  const Profile profile = TransformerProfile(model, "");
  ASSERT_EQ(profile.sizes.size(), 2u);
  EXPECT_EQ(profile.sizes[1].micro_batch_rows, 3);
  double total_ns = 0, flops = 0;
  for (const LayerCost& layer : profile.sizes[1].layers) {
    total_ns += layer.batch_ns(1);
    flops += layer.flops;
  }
  EXPECT_NEAR(total_ns * 1e-9 * 2 * 10e12, flops, 1);
  model.attention = Attention::kRecomputed;
  const LayerCost again = TransformerProfile(model, "").sizes[1].layers[2];
  EXPECT_GT(again.backward_input_ns, profile.sizes[1].layers[2].backward_input_ns);
  EXPECT_EQ(again.forward_ns, profile.sizes[1].layers[2].forward_ns);
}

// Tiles of 256 x 128, in waves of the number of multiprocessors.
TEST(TransformerProfile, ProductsFillADeviceInWaves) {
  EXPECT_EQ(ShareFilled(256, 128, 1), 1.0);
  EXPECT_EQ(ShareFilled(257, 128, 2), 257.0 / 512);
  EXPECT_EQ(ShareFilled(256, 3 * 128, 2), 0.75) << "two waves, one half full";
  EXPECT_EQ(ShareFilled(2048, 12288, 108), 768.0 / (8 * 108));
  EXPECT_EQ(ShareFilled(3, 5, 0), 1.0);
}

// How much a part of the description lengthens F, B and W of the first layer.
struct Longer {
  double forward_ns, backward_input_ns, backward_weight_ns;
};
Longer LongerBy(const Transformer& model, const Transformer& without) {
  const LayerCost a = TransformerProfile(model, "").sizes[0].layers[1];
  const LayerCost b = TransformerProfile(without, "").sizes[0].layers[1];
  return {a.forward_ns - b.forward_ns, a.backward_input_ns - b.backward_input_ns,
          a.backward_weight_ns - b.backward_weight_ns};
}

TEST(TransformerProfile, WhatIsBoundByMemoryTakesBytesOverItsSpeed) {
  const Transformer plain = {.layers = 1,
                             .hidden = 64,
                             .heads = 2,
                             .sequence = 16,
                             .vocabulary = 10,
                             .tensor_parallel = 2};
  const double sbh = 16 * 64, as2b = 2 * 16 * 16;
  for (const bool sequence_parallel : {false, true}) {
    for (const Attention attention :
         {Attention::kStored, Attention::kRecomputed, Attention::kFlash}) {
      Transformer without = plain;
      without.sequence_parallel = sequence_parallel;
      without.attention = attention;
      Transformer model = without;
      model.memory_gigabytes_per_second = 0.5;
      const Longer longer = LongerBy(model, without);
      const double t = sequence_parallel ? 2 : 1;
      const double scores = attention == Attention::kFlash ? 0 : as2b / 2;
      const double again = attention == Attention::kRecomputed ? 13 * scores : 0;
      EXPECT_NEAR(longer.forward_ns, 2 * (22 * sbh / t + 16 * sbh / 2 + 13 * scores), 1e-6);
      EXPECT_NEAR(longer.backward_input_ns, 2 * (34 * sbh / t + 24 * sbh / 2 + 19 * scores + again),
                  1e-6);
      EXPECT_EQ(longer.backward_weight_ns, 0);
      const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
      EXPECT_EQ(layers[0].forward_ns, 2 * 7 * sbh / t);
      EXPECT_EQ(layers[0].backward_weight_ns, 2 * 6 * sbh / t);
      // A parameter and the optimizer's 12 bytes are read and written, a gradient is read twice.
      EXPECT_EQ(layers[1].step_ns, 2 * 2 * 14 * (12 * 64 * 64 + 13 * 64) / 2);
      const std::vector<LayerCost> bare = TransformerProfile(without, "").sizes[0].layers;
      EXPECT_NEAR(layers[2].forward_ns - bare[2].forward_ns, 2 * 8 * 16 * 10 / 2, 1e-6);
      EXPECT_NEAR(layers[2].backward_input_ns - bare[2].backward_input_ns, 2 * 6 * 16 * 10 / 2,
                  1e-6);
      EXPECT_EQ(bare[0].forward_ns + bare[1].step_ns, 0);
    }
  }
}

// Four all-reduces of w s b h bytes in a layer, one in the embedding and one in the head: each is
// two messages of (t - 1) / t of the bytes. W gathers again what devices kept a part of.
TEST(TransformerProfile, DevicesThatShareALayerSumActivations) {
  const Transformer without = {.layers = 1,
                               .hidden = 64,
                               .heads = 2,
                               .sequence = 16,
                               .vocabulary = 10,
                               .tensor_parallel = 4};
  Transformer model = without;
  model.tensor_link = {.latency_ns = 7, .bytes_per_second = 1e9};
  const double sum_ns = 2 * (7 + 2 * 16 * 64 * 3 / 4);
  for (const bool sequence_parallel : {false, true}) {
    model.sequence_parallel = sequence_parallel;
    const Longer longer = LongerBy(model, without);
    EXPECT_NEAR(longer.forward_ns, 2 * sum_ns, 1e-6);
    EXPECT_NEAR(longer.backward_input_ns, 2 * sum_ns, 1e-6);
    EXPECT_NEAR(longer.backward_weight_ns, sequence_parallel ? sum_ns : 0, 1e-6);
  }
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  EXPECT_EQ(layers[0].forward_ns, sum_ns);
  const LayerCost head = TransformerProfile(without, "").sizes[0].layers[2];
  EXPECT_EQ(layers[2].forward_ns, head.forward_ns);
  EXPECT_NEAR(layers[2].backward_input_ns - head.backward_input_ns, sum_ns, 1e-6);
  model.tensor_parallel = 1;
  EXPECT_EQ(TransformerProfile(model, "").sizes[0].layers[0].forward_ns, 0) << "none to sum with";
}

// Each product has its own size in F, in B and in W: rows and columns of the result.
TEST(TransformerProfile, EachProductIsAsSlowAsItsWaves) {
  Transformer model = {.layers = 1,
                       .hidden = 256,
                       .heads = 2,
                       .sequence = 256,
                       .vocabulary = 640,
                       .device_teraflops = 1,
                       .device_multiprocessors = 4};
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  model.device_multiprocessors = 0;
  const std::vector<LayerCost> whole = TransformerProfile(model, "").sizes[0].layers;
  // Tiles are 256 x 128: F and W of the head, both 256 x 640, have 5, in 2 waves of 4; B, 256 x
  // 256, has 2 in one.
  EXPECT_NEAR(layers[2].forward_ns, whole[2].forward_ns * 8 / 5, 1e-6);
  EXPECT_NEAR(layers[2].backward_input_ns, whole[2].backward_input_ns * 4 / 2, 1e-6);
  EXPECT_NEAR(layers[2].backward_weight_ns, whole[2].backward_weight_ns * 8 / 5, 1e-6);
  // W of a layer: 256 x 768 has 6 tiles of 8; 256 x 256 2 of 4; 256 x 1024 and 1024 x 256 fill.
  const double unit_ns = 2e-3 * 256 * 256 * 256;
  EXPECT_NEAR(layers[1].backward_weight_ns, unit_ns * (4 + 2 + 4 + 4), 1e-3);
}

// Returns a small model with everything that a Llama has: 8 query heads of 16 values, 2 of keys.
Transformer SmallLlama() {
  return {.layers = 1,
          .hidden = 64,
          .heads = 8,
          .sequence = 32,
          .vocabulary = 10,
          .kv_heads = 2,
          .head_size = 16,
          .mlp_hidden = 96,
          .mlp = Mlp::kSwiGlu,
          .norm = Norm::kRmsNorm,
          .bias = Bias::kNone,
          .positions = Positions::kRotary,
          .tie_word_embeddings = false,
          .dropout = false,
          .micro_batch_rows = {3},
          .attention = Attention::kFlash,
          .device_teraflops = 1};
}

// Queries and keys are kept before their norm, too; F reads and writes them once more, and B also
// reads their gradient.
TEST(TransformerProfile, ANormOfHeadsCostsItsTensors) {
  Transformer model = SmallLlama();
  model.memory_gigabytes_per_second = 1;  // a byte takes 1 ns
  const LayerCost plain = TransformerProfile(model, "").sizes[0].layers[1];
  const int64_t kept = ActivationBytes(model, 3);
  model.qk_norm = true;
  const LayerCost layer = TransformerProfile(model, "").sizes[0].layers[1];
  const int64_t bytes = 2 * 32 * 3 * (8 * 16 + 2 * 16);
  EXPECT_EQ(ActivationBytes(model, 3) - kept, bytes);
  EXPECT_EQ(layer.parameters - plain.parameters, 2 * 16);
  EXPECT_DOUBLE_EQ(layer.forward_ns - plain.forward_ns, static_cast<double>(2 * bytes));
  EXPECT_DOUBLE_EQ(layer.backward_input_ns - plain.backward_input_ns,
                   static_cast<double>(3 * bytes));
  EXPECT_EQ(layer.flops, plain.flops);
}

// Their inputs are kept, F reads and writes a value of each, and B reads another.
TEST(TransformerProfile, NormsBehindAttentionAndPerceptronCostTheirTensors) {
  Transformer model = SmallLlama();
  model.memory_gigabytes_per_second = 1;
  const LayerCost plain = TransformerProfile(model, "").sizes[0].layers[1];
  const int64_t kept = ActivationBytes(model, 3);
  model.post_norms = true;
  const LayerCost layer = TransformerProfile(model, "").sizes[0].layers[1];
  const int64_t bytes = 2 * 32 * 3 * 64;
  EXPECT_EQ(ActivationBytes(model, 3) - kept, 2 * bytes);
  EXPECT_EQ(layer.parameters - plain.parameters, 2 * 64);
  EXPECT_DOUBLE_EQ(layer.forward_ns - plain.forward_ns, static_cast<double>(4 * bytes));
  EXPECT_DOUBLE_EQ(layer.backward_input_ns - plain.backward_input_ns,
                   static_cast<double>(6 * bytes));
}

// Inputs of both norms and of the products behind them, queries, keys, values, the output of
// attention, the gate, its other factor, and their product. No dropout.
TEST(TransformerProfile, AGatedLayerWithGroupedHeadsKeepsItsTensors) {
  Transformer model = SmallLlama();
  const int64_t tokens = 32 * 3, heads = 8 * 16, keys = 2 * 16;
  EXPECT_EQ(ActivationBytes(model, 3), 2 * tokens * (4 * 64 + 2 * heads + 2 * keys + 3 * 96));
  model.attention = Attention::kStored;
  EXPECT_EQ(ActivationBytes(model, 3),
            2 * tokens * (4 * 64 + 2 * heads + 2 * keys + 3 * 96) + 2 * 8 * 32 * tokens);
  const LayerCost layer = TransformerProfile(model, "").sizes[0].layers[1];
  EXPECT_EQ(layer.parameters, 64 * (heads + 2 * keys) + heads * 64 + 3 * 64 * 96 + 2 * 64);
  EXPECT_EQ(layer.memory.weight_stash_bytes, 2 * tokens * (2 * 64 + heads + 96));
  EXPECT_EQ(layer.memory.gradient_stash_bytes, 2 * tokens * (heads + 2 * keys + 64 + 2 * 96));
}

TEST(TransformerProfile, AGatedLayerMovesItsTensors) {
  const Transformer without = SmallLlama();
  Transformer model = without;
  model.memory_gigabytes_per_second = 1;
  const double tokens = 32 * 3;
  const Longer longer = LongerBy(model, without);
  EXPECT_NEAR(longer.forward_ns, tokens * (20 * 64 + 6 * 96 + 4 * (128 + 32)), 1e-6);
  EXPECT_NEAR(longer.backward_input_ns, tokens * (24 * 64 + 10 * 96 + 4 * (128 + 32)), 1e-6);
  EXPECT_EQ(TransformerProfile(model, "").sizes[0].layers[0].forward_ns, 2 * 2 * 64 * tokens)
      << "a row of the table, and no positions";
}

// Bytes per token as without experts, but for two perceptrons; each copy is put in order in F, the
// experts' outputs are summed from the copies, and both happen again in B.
TEST(TransformerProfile, ExpertsMoveTheirTokens) {
  Transformer without = SmallLlama();
  without.experts = 8;
  without.experts_per_token = 2;
  Transformer model = without;
  model.memory_gigabytes_per_second = 1;
  const double tokens = 32 * 3;
  const Longer longer = LongerBy(model, without);
  EXPECT_NEAR(longer.forward_ns,
              tokens * (20 * 64 + 2 * 6 * 96 + 4 * (128 + 32) + 2 * 6 * 64 + 2 * 64), 1e-6);
  EXPECT_NEAR(longer.backward_input_ns,
              tokens * (24 * 64 + 2 * 10 * 96 + 4 * (128 + 32) + 2 * 8 * 64 + 2 * 64), 1e-6);
}

// Two groups with 2,400 pairs each: 1,200 for each of the group's 2 experts, of 4: 5 x 1 tiles,
// twice, in one wave of 10.
TEST(TransformerProfile, ProductsOfExpertsShareWaves) {
  EXPECT_EQ(ShareFilled(1200, 128, 10, 2), 2.0 * 1200 / (10 * 256));
  Transformer model = SmallLlama();
  model.hidden = model.mlp_hidden = 128;
  model.mlp = Mlp::kGelu;
  model.sequence = 1200;
  model.micro_batch_rows = {2};
  model.experts = 4;
  model.expert_parallel = 2;
  model.experts_per_token = 2;
  model.device_multiprocessors = 10;
  const LayerCost layer = TransformerProfile(model, "").sizes[0].layers[1];
  // The time of a wave of products of that many values each, and of the attention of 1,200
  // positions.
  const auto wave_ns = [](double inner) { return 2e-3 * 10 * 256 * 128 * inner; };
  const double attention_ns = 4e-3 * 1200 * 1200 * 128;
  // Queries, keys and values; the output of attention; the router; two products of the experts.
  EXPECT_NEAR(layer.forward_ns, attention_ns + 5 * wave_ns(128), 1e-3);
}

// Eight experts, two for each token, shared by four groups: each group has half of the experts'
// parameters, a quarter of the samples, and as many pairs of a token and an expert as before.
TEST(TransformerProfile, ExpertsAreSharedByGroupsThatShareRows) {
  Transformer one = SmallLlama();
  one.experts = 8;
  one.experts_per_token = 2;
  one.micro_batch_rows = {4};
  ASSERT_OK(CheckTransformer(one));
  Transformer shared = one;
  shared.expert_parallel = 4;
  ASSERT_OK(CheckTransformer(shared));
  const LayerCost whole = TransformerProfile(one, "").sizes[0].layers[1];
  const LayerCost part = TransformerProfile(shared, "").sizes[0].layers[1];
  const int64_t expert = 3 * 64 * 96, others = 64 * 192 + 128 * 64 + 2 * 64 + 64 * 8;
  EXPECT_EQ(whole.parameters, 8 * expert + others);
  EXPECT_EQ(part.parameters, whole.parameters);
  EXPECT_EQ(whole.memory.parameter_bytes, 2 * (8 * expert + others));
  EXPECT_EQ(part.memory.parameter_bytes, 2 * (2 * expert + others));
  EXPECT_EQ(part.flops, whole.flops);
  EXPECT_NEAR(part.forward_ns, whole.forward_ns / 4, 1e-6);
  EXPECT_EQ(ActivationBytes(shared, 4), ActivationBytes(one, 1));
  // Per token: as without experts, twice the experts' inputs and outputs, and the router's.
  EXPECT_EQ(ActivationBytes(one, 1),
            32 * (2 * (4 * 64 + 2 * 128 + 2 * 32) + 2 * 2 * (2 * 64 + 3 * 96) + 8 * 8));
  EXPECT_EQ(ActivationBytes(shared, 5), ActivationBytes(one, 2)) << "the group with the most rows";
  one.capacity_factor = 1.5;
  EXPECT_EQ(ActivationBytes(one, 1),
            32 * (2 * (4 * 64 + 2 * 128 + 2 * 32) + 3 * 2 * (2 * 64 + 3 * 96) + 8 * 8));
}

// Messages to the experts and back, in F and in B: of 2 pairs per token 3 of 4 go to other groups.
TEST(TransformerProfile, TokensGoToTheirExpertsAndBack) {
  Transformer without = SmallLlama();
  without.experts = 8;
  without.experts_per_token = 2;
  without.expert_parallel = 4;
  without.micro_batch_rows = {4};
  Transformer model = without;
  model.expert_link = {.latency_ns = 7, .bytes_per_second = 1e9};
  const double all_to_all_ns = 7 + 2 * 32 * 64 * 2 * 3 / 4;
  const Longer longer = LongerBy(model, without);
  EXPECT_NEAR(longer.forward_ns, 2 * all_to_all_ns, 1e-6);
  EXPECT_NEAR(longer.backward_input_ns, 2 * all_to_all_ns, 1e-6);
  EXPECT_EQ(longer.backward_weight_ns, 0);
  // The gradients of everything except experts are summed over the groups.
  const int64_t others = 64 * 192 + 128 * 64 + 2 * 64 + 64 * 8;
  const Profile profile = TransformerProfile(model, "");
  EXPECT_EQ(profile.sizes[0].layers[1].step_ns, 2 * (7 + 2 * others * 3 / 4));
  // If two devices share each layer and its sequence, each sends half.
  without.tensor_parallel = model.tensor_parallel = 2;
  without.sequence_parallel = model.sequence_parallel = true;
  EXPECT_NEAR(LongerBy(model, without).forward_ns, 2 * (7 + 2 * 32 * 64 * 3 / 4), 1e-6);
}

TEST(TransformerProfile, MessagesHideBehindProductsOfTheirPass) {
  Transformer model = SmallLlama();
  model.tensor_parallel = 2;
  model.sequence_parallel = true;
  const Transformer without = model;
  model.tensor_link = {.latency_ns = 0, .bytes_per_second = 1e9};
  const double gather_ns = 2 * 32 * 3 * 64 / 2;
  EXPECT_NEAR(LongerBy(model, without).forward_ns, 4 * gather_ns, 1e-6);
  // Slow products hide everything that may be hidden.
  Transformer slow = model, slow_without = without;
  slow.device_teraflops = slow_without.device_teraflops = 1e-3;
  slow.tensor_overlap = 0.75;
  Longer longer = LongerBy(slow, slow_without);
  EXPECT_NEAR(longer.forward_ns, gather_ns, 1e-3);
  EXPECT_NEAR(longer.backward_input_ns, gather_ns, 1e-3);
  EXPECT_NEAR(longer.backward_weight_ns, gather_ns / 2, 1e-3);
  // Fast products hide no more than their own time.
  model.tensor_overlap = 1;
  longer = LongerBy(model, without);
  const double products_ns = 2e-3 * 96 * (64 * 192 + 128 * 64 + 3 * 64 * 96) / 2;
  ASSERT_LT(products_ns, 4 * gather_ns);
  EXPECT_NEAR(longer.forward_ns, 4 * gather_ns - products_ns, 1e-6);
}

TEST(TransformerProfile, KernelsThatLeaveOutWhatIsMaskedComputeHalf) {
  Transformer model = SmallLlama();
  const LayerCost all = TransformerProfile(model, "").sizes[0].layers[1];
  model.computed_scores = 0.5;
  const LayerCost half = TransformerProfile(model, "").sizes[0].layers[1];
  EXPECT_NEAR(all.forward_ns - half.forward_ns, 2e-3 * 96 * 32 * 128, 1e-6);
  EXPECT_EQ(all.flops, half.flops) << "as papers count them";
}

// ---- Selective recomputation ----

LayerCost SelectiveLayer(const Transformer& shape, RepeatedOperators repeated) {
  Transformer model = shape;
  model.recompute = Recompute::kSelective;
  model.repeated = repeated;
  return TransformerProfile(model, "").sizes[0].layers[1];
}

// If every layer repeats the scores, it equals the layer with attention "recomputed".
TEST(TransformerProfile, SelectiveRecomputationIsThatOfThePaper) {
  Transformer model = Korthikanti22B();
  model.memory_gigabytes_per_second = 1500;
  const LayerCost layer = SelectiveLayer(model, {.scores = true});
  const LayerCost again = Recomputed(layer);
  model.attention = Attention::kRecomputed;
  const LayerCost published = TransformerProfile(model, "").sizes[0].layers[1];
  EXPECT_EQ(again.memory.stash_bytes, published.memory.stash_bytes);
  EXPECT_EQ(again.memory.weight_stash_bytes, published.memory.weight_stash_bytes);
  EXPECT_EQ(again.memory.workspace_bytes, published.memory.workspace_bytes);
  EXPECT_NEAR(again.backward_input_ns, published.backward_input_ns, 1e-3);
  EXPECT_GT(again.flops, layer.flops);
  EXPECT_EQ(*layer.recompute_stash_bytes,
            published.memory.stash_bytes + published.memory.weight_stash_bytes);
}

TEST(TransformerProfile, NormsAndActivationsAreRepeatedInTheTimeOfTheirBytes) {
  Transformer model = SmallLlama();
  model.memory_gigabytes_per_second = 1;
  const int64_t tokens = 32 * 3;
  const LayerCost layer =
      SelectiveLayer(model, {.scores = false, .norms = true, .activation = true});
  ASSERT_TRUE(layer.repeated.has_value());
  EXPECT_NEAR(layer.repeated->forward_ns, tokens * (8 * 64 + 6 * 96), 1e-6);
  EXPECT_EQ(layer.repeated->stash_bytes, 0);
  EXPECT_EQ(layer.repeated->weight_stash_bytes, 2 * tokens * (2 * 64 + 96));
  const LayerCost again = Recomputed(layer);
  EXPECT_EQ(again.memory.weight_stash_bytes, 2 * tokens * 128) << "the input of the projection";
  EXPECT_EQ(again.memory.gradient_stash_bytes,
            layer.memory.gradient_stash_bytes + 2 * tokens * (2 * 64 + 96));
  EXPECT_EQ(again.memory.stash_bytes, layer.memory.stash_bytes);
  EXPECT_NEAR(again.backward_input_ns - layer.backward_input_ns, tokens * (8 * 64 + 6 * 96), 1e-6);
}

TEST(TransformerProfile, ALayerThatWouldDropNothingCannotRecompute) {
  EXPECT_FALSE(SelectiveLayer(SmallLlama(), {.scores = true}).recompute_stash_bytes.has_value());
}

TEST(TransformerProfile, AdamInMixedPrecisionTakes16BytesPerParameter) {
  const Transformer model = {
      .layers = 1, .hidden = 64, .heads = 2, .sequence = 16, .vocabulary = 10};
  const LayerCost layer = TransformerProfile(model, "").sizes[0].layers[1];
  const schedule::StageMemory stage = LayOutStage(MemoryOf({layer}), {}, {});
  EXPECT_EQ(stage.parameter_bytes + stage.gradient_bytes + stage.optimizer_bytes,
            16 * (12 * 64 * 64 + 13 * 64));
}

// ---- Files ----

constexpr absl::string_view kFile = R"(version = 1
layers = 4
hidden = 64
heads = 2
sequence = 16
vocabulary = 10
)";

TEST(TransformerFile, FieldsAreThoseOfTheStructure) {
  ASSERT_OK_AND_ASSIGN(const TransformerDescription plain, ParseTransformer(kFile));
  const Transformer model = {
      .layers = 4, .hidden = 64, .heads = 2, .sequence = 16, .vocabulary = 10};
  EXPECT_EQ(plain, (TransformerDescription{model, {Attention::kStored}}));
  ASSERT_OK_AND_ASSIGN(const TransformerDescription full,
                       ParseTransformer(absl::StrCat(kFile, R"(micro_batch_rows = [1, 2]
bytes_per_value = 4
tensor_parallel = 2
sequence_parallel = true
attention = "flash"
device_teraflops = 312
device_multiprocessors = 108
memory_gigabytes_per_second = 2039
)")));
  const Transformer other = {.layers = 4,
                             .hidden = 64,
                             .heads = 2,
                             .sequence = 16,
                             .vocabulary = 10,
                             .micro_batch_rows = {1, 2},
                             .bytes_per_value = 4,
                             .optimizer_bytes_per_parameter = 8,
                             .tensor_parallel = 2,
                             .sequence_parallel = true,
                             .attention = Attention::kFlash,
                             .device_teraflops = 312,
                             .device_multiprocessors = 108,
                             .memory_gigabytes_per_second = 2039};
  EXPECT_EQ(full, (TransformerDescription{other, {Attention::kFlash}}));
}

TEST(TransformerFile, ListsAndAutoLeaveItToThePlanner) {
  ASSERT_OK_AND_ASSIGN(const TransformerDescription lists,
                       ParseTransformer(absl::StrCat(kFile, R"(micro_batch_rows = [4]
attention = ["recomputed", "stored"]
tensor_parallel = [8]
)")));
  EXPECT_THAT(lists.transformer.micro_batch_rows, ElementsAre(4));
  EXPECT_THAT(lists.attentions, ElementsAre(Attention::kRecomputed, Attention::kStored));
  EXPECT_THAT(lists.tensor_parallel, ElementsAre(8));
  EXPECT_FALSE(lists.any_tensor_parallel);
  ASSERT_OK_AND_ASSIGN(const TransformerDescription any,
                       ParseTransformer(absl::StrCat(kFile, R"(micro_batch_rows = "auto"
attention = "auto"
tensor_parallel = "auto"
)")));
  EXPECT_THAT(any.transformer.micro_batch_rows, ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(any.attentions,
              ElementsAre(Attention::kStored, Attention::kRecomputed, Attention::kFlash));
  EXPECT_EQ(any.tensor_parallel.size(), 11u) << "1 to 1024";
  EXPECT_TRUE(any.any_tensor_parallel);
}

TEST(TransformerFile, RefusesWithLineKeyAndRange) {
  struct Line {
    const char* text;
    const char* message;
  };
  const Line lines[] = {
      {"tensor_paralel = 2",
       "7:1: $: unknown key \"tensor_paralel\"; did you mean \"tensor_parallel\"?"},
      {"tensor_parallel = 0", "7:1: $.tensor_parallel: must be from 1 to 1024, found 0"},
      {"tensor_parallel = [4, 2]", "7:1: $.tensor_parallel: must ascend"},
      {"tensor_parallel = [2048]", "7:1: $.tensor_parallel: must ascend"},
      {"tensor_parallel = []", "7:1: $.tensor_parallel: must have"},
      {"tensor_parallel = \"all\"", "7:1: $.tensor_parallel: expected an integer"},
      {"bytes_per_value = 2.0", "7:1: $.bytes_per_value: expected an integer"},
      {"device_teraflops = -1", "7:1: $.device_teraflops: must be from 1e-06 to 1e+09"},
      {"memory_gigabytes_per_second = -1",
       "7:1: $.memory_gigabytes_per_second: must be from 0 to 1e+09"},
      {"device_multiprocessors = -1", "7:1: $.device_multiprocessors: must be from 0 to 65536"},
      {"attention = \"fast\"", "7:1: $.attention: must be \"stored\", \"recomputed\""},
      {"attention = [\"flash\", \"flash\"]", "7:1: $.attention: has \"flash\" twice"},
      {"attention = []", "7:1: $.attention: must have"},
      {"micro_batch_rows = [2, 1]", "7:1: $.micro_batch_rows: must ascend"},
      {"micro_batch_rows = 4000000000", "7:1: $.micro_batch_rows: with 4000000000 rows"},
      {"device_teraflops = nan", "7:"},
      {"mlp = \"relu\"", "7:1: $.mlp: must be \"gelu\", \"swiglu\", found"},
      {"bias = 1", "7:1: $.bias: expected a string"},
      {"kv_heads = 4", "7:1: $.kv_heads: must divide heads, 2, found 4"},
      {"kv_heads = 1\ntensor_parallel = 2",
       "8:1: $.tensor_parallel: must divide kv_heads, 1, found 2"},
      {"expert_parallel = 2", "7:1: $.expert_parallel: is 2, but the model has"},
      {"experts = 4\nexperts_per_token = 5",
       "8:1: $.experts_per_token: must be at most experts, 4, found 5"},
      {"experts = 4\nexpert_parallel = 3",
       "8:1: $.expert_parallel: must divide experts, 4, found 3"},
      {"capacity_factor = 0.5", "7:1: $.capacity_factor: must be from 1 to"},
      {"tensor_overlap = 1.5", "7:1: $.tensor_overlap: must be from 0 to 1"},
      {"computed_scores = 0", "7:1: $.computed_scores: must be from 0.01 to 1"},
      {"context = 8", "5:1: $.sequence: must be at most the learned positions, 8, found 16"},
      {"recompute = \"none\"", "7:1: $.recompute: must be \"full\", \"selective\", a list"},
      {"recompute_operators = [\"mlp\"]", "7:1: $.recompute_operators: must be"},
      {"rope_theta = 1", "7:1: $: unknown key \"rope_theta\""},
  };
  for (const Line& line : lines) {
    EXPECT_THAT(ParseTransformer(absl::StrCat(kFile, line.text)),
                IsRefused(StartsWith(line.message)));
  }
  EXPECT_THAT(ParseTransformer("version = 1\nlayers = 1"),
              IsRefused("the key \"hidden\" is missing"));
  EXPECT_THAT(ParseTransformer("\nversion = 2"),
              IsRefused(StartsWith("2:1: $.version: version 2: this program reads")));
  EXPECT_THAT(ParseTransformer(
                  "version = 1\nlayers = 1\nhidden = 10\nheads = 3\nsequence = 1\nvocabulary = 1"),
              IsRefused(StartsWith("4:1: $.heads: must divide hidden, 10, found 3")));
}

// No sum overflows, whatever the numbers are.
TEST(TransformerFile, RefusesSizesThatNoMachineHas) {
  for (const std::string number : {"1", "1000", "1048576", "16777216", "4294967296"}) {
    for (const absl::string_view key :
         {"hidden", "heads", "sequence", "vocabulary", "micro_batch_rows"}) {
      std::string text = "version = 1\nlayers = 2\n";
      for (const absl::string_view each :
           {"hidden", "heads", "sequence", "vocabulary", "micro_batch_rows"}) {
        const bool small = each == key || each == "heads";
        absl::StrAppend(&text, each, " = ", small ? "1" : number, "\n");
      }
      const absl::StatusOr<TransformerDescription> description = ParseTransformer(text);
      const bool is_possible =
          description.ok() && TransformerOptions(*description, "", UniformCluster(1)).ok();
      EXPECT_EQ(is_possible, number == "1" || number == "1000") << text;
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
