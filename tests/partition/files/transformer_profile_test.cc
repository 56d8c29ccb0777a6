#include "partition/files/transformer_profile.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/files/transformer_times.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kGiB = double{1 << 30};

// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", table 1: all with a vocabulary of 51,200 and sequences of 2,048.
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
    // Equation 2 there: 12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)).
    EXPECT_EQ(count, model.layers * (12 * model.hidden * model.hidden + 13 * model.hidden) +
                         (51200 + 2048) * model.hidden);
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

// On the first stage, by its formulas: L layers' worth for 22B, which has one stage; for 175B, with
// 8 stages of 3 chunks each, L (1 + (p - 1) / (p v)).
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

// What a stage of the profile keeps is what the formulas say, inputs between layers counted once.
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

// Qi et al. 2023, "Zero Bubble Pipeline Parallelism", table 1: what is kept from B until W is 32 s
// b h, for W to multiply.
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

// Korthikanti et al. 2022: with one stage, 4 s b h (1 + v / h) / t on top of the
// layers, and the mask of the embedding's dropout.
TEST(TransformerProfile, EmbeddingAndHeadKeepWhatIsPublished) {
  Transformer model = Korthikanti22B();
  model.sequence_parallel = true;
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  const int64_t sb = 2048 * 4;
  EXPECT_EQ(KeptUntilBackward(LayOutStage(MemoryOf(absl::MakeSpan(layers).last(1)), {}, {})),
            4 * sb * (6144 + 51200) / 8);
  EXPECT_EQ(layers[0].memory.stash_bytes, sb * 6144 / 8);
}

// Of F, B and W of all layers at the first size.
double FlopsOf(const Transformer& model) {
  double flops = 0;
  const Profile profile = TransformerProfile(model, "");
  for (const LayerCost& layer : profile.sizes[0].layers) flops += layer.flops;
  return flops;
}

// Narayanan et al. 2021, equation 3, less the F that is done again: 72 in place of 96.
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

// Tiles of 256 x 128, in waves of as many as there are multiprocessors.
TEST(TransformerProfile, ProductsFillADeviceInWaves) {
  EXPECT_EQ(ShareFilled(256, 128, 1), 1.0);
  EXPECT_EQ(ShareFilled(257, 128, 2), 257.0 / 512);
  EXPECT_EQ(ShareFilled(256, 3 * 128, 2), 0.75) << "two waves, one half full";
  EXPECT_EQ(ShareFilled(2048, 12288, 108), 768.0 / (8 * 108));
  EXPECT_EQ(ShareFilled(3, 5, 0), 1.0);
}

// By how much a part of the description makes F, B and W of the first layer longer.
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
// two messages of (t - 1) / t of them.
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
    EXPECT_EQ(longer.backward_weight_ns, 0);
  }
  const std::vector<LayerCost> layers = TransformerProfile(model, "").sizes[0].layers;
  EXPECT_EQ(layers[0].forward_ns, sum_ns);
  const LayerCost head = TransformerProfile(without, "").sizes[0].layers[2];
  EXPECT_EQ(layers[2].forward_ns, head.forward_ns);
  EXPECT_NEAR(layers[2].backward_input_ns - head.backward_input_ns, sum_ns, 1e-6);
  model.tensor_parallel = 1;
  EXPECT_EQ(TransformerProfile(model, "").sizes[0].layers[0].forward_ns, 0) << "none to sum with";
}

// Each product has a size of its own in F, in B and in W: rows and columns of what comes out.
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
  // In tiles of 256 x 128: F and W of the head, 256 x 640 both, have 5, in 2 waves of 4; B, 256 x
  // 256, has 2 in one.
  EXPECT_NEAR(layers[2].forward_ns, whole[2].forward_ns * 8 / 5, 1e-6);
  EXPECT_NEAR(layers[2].backward_input_ns, whole[2].backward_input_ns * 4 / 2, 1e-6);
  EXPECT_NEAR(layers[2].backward_weight_ns, whole[2].backward_weight_ns * 8 / 5, 1e-6);
  // W of a layer: 256 x 768 has 6 tiles of 8; 256 x 256 2 of 4; 256 x 1024 and 1024 x 256 fill.
  const double unit_ns = 2e-3 * 256 * 256 * 256;
  EXPECT_NEAR(layers[1].backward_weight_ns, unit_ns * (4 + 2 + 4 + 4), 1e-3);
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

void ExpectDescriptionRefused(const std::string& more, const std::string& message) {
  EXPECT_THAT(ParseTransformer(absl::StrCat(kFile, more)),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(message)));
}

TEST(TransformerFile, RefusesWithLineKeyAndRange) {
  ExpectDescriptionRefused(
      "tensor_paralel = 2",
      "7:1: $: unknown key \"tensor_paralel\"; did you mean \"tensor_parallel\"?");
  ExpectDescriptionRefused("tensor_parallel = 0",
                           "7:1: $.tensor_parallel: must be from 1 to 1024, found 0");
  ExpectDescriptionRefused("tensor_parallel = [4, 2]", "7:1: $.tensor_parallel: must ascend");
  ExpectDescriptionRefused("tensor_parallel = [2048]", "7:1: $.tensor_parallel: must ascend");
  ExpectDescriptionRefused("tensor_parallel = []", "7:1: $.tensor_parallel: must have");
  ExpectDescriptionRefused("tensor_parallel = \"all\"",
                           "7:1: $.tensor_parallel: expected an integer");
  ExpectDescriptionRefused("bytes_per_value = 2.0", "7:1: $.bytes_per_value: expected an integer");
  ExpectDescriptionRefused("device_teraflops = -1",
                           "7:1: $.device_teraflops: must be from 1e-06 to 1e+09");
  ExpectDescriptionRefused("memory_gigabytes_per_second = -1",
                           "7:1: $.memory_gigabytes_per_second: must be from 0 to 1e+09");
  ExpectDescriptionRefused("device_multiprocessors = -1",
                           "7:1: $.device_multiprocessors: must be from 0 to 65536");
  ExpectDescriptionRefused("attention = \"fast\"",
                           "7:1: $.attention: must be \"stored\", \"recomputed\"");
  ExpectDescriptionRefused("attention = [\"flash\", \"flash\"]",
                           "7:1: $.attention: has \"flash\" twice");
  ExpectDescriptionRefused("attention = []", "7:1: $.attention: must have");
  ExpectDescriptionRefused("micro_batch_rows = [2, 1]", "7:1: $.micro_batch_rows: must ascend");
  ExpectDescriptionRefused("micro_batch_rows = 4000000000",
                           "7:1: $.micro_batch_rows: with 4000000000 rows");
  ExpectDescriptionRefused("device_teraflops = nan", "7:");
  EXPECT_THAT(ParseTransformer("version = 1\nlayers = 1"),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("the key \"hidden\" is missing")));
  EXPECT_THAT(ParseTransformer("\nversion = 2"),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("2:1: $.version: version 2: this program reads")));
  EXPECT_THAT(ParseTransformer(
                  "version = 1\nlayers = 1\nhidden = 10\nheads = 3\nsequence = 1\nvocabulary = 1"),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                StartsWith("4:1: $.heads: must divide hidden, 10, found 3")));
}

// Whatever the numbers are, no sum of them overflows.
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
