#include "tests/engine/train/cuda/run.h"

#include <ostream>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/tokens/tokens.h"
#include "engine/models/model_file.h"
#include "engine/models/transformer.h"
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/composite/branches.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/embedding.h"
#include "engine/nn/layers/head.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/swiglu.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "tests/engine/train/runs/small_run.h"

namespace stagecoach::engine {
Model TinyModel() {
  return {.input = Shape{kSmallFeatures},
          .layers = {
              Linear(15, Activation::kGelu), Linear(9, Activation::kRelu),
              Residual({LayerNorm(), Linear(9, Activation::kGelu)}), LayerNorm(),
              Residual({LayerNorm(), Linear(9, Activation::kRelu)}), Linear(11, Activation::kGelu),
              Residual({Residual({LayerNorm(), Linear(11)}), Linear(11)}), Linear(kSmallClasses)}};
}

Model BlocksModel() {
  const LayerFactory gelu = Residual({LayerNorm(), Linear(16, Activation::kGelu)});
  const LayerFactory relu = Residual({LayerNorm(), Linear(16, Activation::kRelu)});
  const LayerFactory nested = Residual({Residual({LayerNorm(), Linear(16)}), LayerNorm()});
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(16), gelu, gelu, relu, nested, LayerNorm(), gelu, nested,
                     Linear(kSmallClasses)}};
}

Model TameModel() {
  const LayerFactory block = Residual({LayerNorm(), Linear(16, Activation::kGelu)});
  return {.input = Shape{kSmallFeatures},
          .layers = {Linear(16, Activation::kGelu), block, block, Linear(kSmallClasses)}};
}

Model FeedForwardModel() {
  const auto linear = [](int64_t outputs, Activation activation) {
    return Linear(outputs, activation, /*gain=*/1.0F, /*has_bias=*/false);
  };
  return {.input = Shape{kSmallFeatures},
          .layers = {linear(16, Activation::kSigmoid), Dropout(0.1F),
                     Residual({RmsNorm(),
                               Branches({{linear(32, Activation::kNone), SwiGlu(),
                                          linear(16, Activation::kGeluExact), Tanh()},
                                         {linear(16, Activation::kSigmoid)},
                                         {linear(16, Activation::kNone)}}),
                               Dropout(0.25F)}),
                     RmsNorm(), Linear(kSmallClasses)}};
}

Model TokenModel() {
  constexpr int64_t kWords = 37;
  return {.input = Shape{5},
          .vocabulary = kWords,
          .layers = {Embedding({.vocabulary = kWords,
                                .features = 8,
                                .positions = true,
                                .token_deviation = 1.0F,
                                .position_deviation = 1.0F}),
                     Residual({LayerNorm(), Linear(16),
                               Attention({.heads = 2, .kv_heads = 1, .rotary_base = 100.0F}),
                               Linear(8), Dropout(0.1F)}),
                     Residual({LayerNorm(), Linear(16, Activation::kGelu), Linear(8)}), LayerNorm(),
                     Head({.classes = kWords})},
          .ties = {{{0, "tokens"}, {4, "weight"}}}};
}

namespace {

Model NamedModel(const std::string& name, const std::string& adapters = "") {
  const Transformer extents = NamedTransformer(name).value();
  return ParseModel(ModelFileOf(extents) + adapters, {.input = Shape{extents.context},
                                                      .vocabulary = extents.vocabulary,
                                                      .classes = extents.vocabulary})
      .value();
}

constexpr char kFrozenModel[] = "gpt2:blocks=1,width=8,heads=2,context=5,vocabulary=37";
constexpr char kAdaptersOfIt[] = "\n[lora]\nrank = 3\nalpha = 4\ndropout = 0.25\n";

}  // namespace

Model Gpt2Model() { return NamedModel("gpt2:blocks=3,width=8,heads=2,context=5,vocabulary=37"); }

Model LlamaModel() {
  return NamedModel(
      "llama:blocks=3,width=8,heads=4,kv_heads=2,head_size=4,hidden=12,context=5,vocabulary=37,"
      "tied=0,qkv_bias=1,qk_norm=1");
}

Model GptNeoXModel() {
  return NamedModel(
      "gpt_neox:blocks=6,width=16,heads=2,hidden=12,context=5,vocabulary=37,rotary_size=4");
}

Model PackedModel() {
  Model model = NamedModel(
      "llama:blocks=2,width=8,heads=4,kv_heads=2,head_size=4,hidden=12,context=11,vocabulary=37,"
      "tied=0");
  model.has_documents = true;
  return model;
}

Model GemmaModel() {
  return NamedModel(
      "gemma:blocks=3,width=8,heads=4,kv_heads=2,head_size=4,hidden=12,context=5,vocabulary=37,"
      "window=3,global_every=2,logit_cap=4");
}

Model LoraModel() { return NamedModel(kFrozenModel, kAdaptersOfIt); }

Model QuantizedModel() {
  return NamedModel("gpt2:blocks=1,width=64,heads=2,hidden=40,context=5,vocabulary=37",
                    absl::StrCat(kAdaptersOfIt, "[quantization]\ntype = \"nf4\"\n"));
}

Model BlockedGpt2Model() {
  return NamedModel("gpt2:blocks=2,width=32,heads=4,context=5,vocabulary=40", TensorTableOf(4));
}

Model BlockedLlamaModel() {
  return NamedModel(
      "llama:blocks=2,width=32,heads=8,kv_heads=4,head_size=8,hidden=32,context=5,vocabulary=40,"
      "tied=0",
      TensorTableOf(4));
}

Model BlockedGemmaModel() {
  return NamedModel(
      "gemma:blocks=2,width=32,heads=8,kv_heads=4,head_size=8,hidden=32,context=5,vocabulary=40,"
      "window=3,global_every=2,logit_cap=4",
      TensorTableOf(4));
}

Model UnalignedModel() {
  return NamedModel("gpt2:blocks=1,width=8,heads=4,context=5,vocabulary=37", TensorTableOf(4));
}

std::shared_ptr<const Dataset> TinyData(const Model& model, int64_t rows) {
  if (model.vocabulary == 0) return SmallData(rows);
  const int64_t context = model.input.dim(0);
  const auto id_at = [&](int64_t i) {
    return static_cast<int32_t>(i * i % 997 % model.vocabulary);
  };
  if (model.has_documents) {
    // Three a row, of 6, 3 and 1 or 2 positions.
    std::vector<ChatTokens> examples;
    for (int64_t i = 0; i < 3 * rows; ++i) {
      const int64_t length = i < rows ? 7 : i < 2 * rows ? 4 : 2 + i % 2;
      ChatTokens& example = examples.emplace_back();
      for (int64_t k = 0; k < length; ++k) example.ids.push_back(id_at(7 * i + k));
      example.trained.assign(example.ids.size(), 1);
    }
    return ChatDataset::Create(examples, context, model.vocabulary, ExamplesInRow::kPacked).value();
  }
  std::vector<int32_t> ids;
  for (int64_t i = 0; i <= rows * context; ++i) ids.push_back(id_at(i));
  return TokenDataset::Create(TokenIds::Of(std::move(ids)).value(), context, model.vocabulary)
      .value();
}

void PrintTo(const TinyAnswer& answer, std::ostream* out) {
  *out << "losses " << ::testing::PrintToString(answer.losses) << ", norms "
       << ::testing::PrintToString(answer.gradient_norms) << ", evaluation "
       << answer.evaluation_loss << ", parameters " << answer.final_hash;
}

int NumGpus() {
  const absl::StatusOr<kernels::CudaBackend*> backend = kernels::CudaBackend::Load();
  return backend.ok() ? static_cast<int>((*backend)->Inspect().gpus.size()) : 0;
}

int64_t ComputeActions(const schedule::Schedule& schedule) {
  int64_t actions = 0;
  for (const auto& list : schedule.actions) {
    for (const schedule::Action& action : list) actions += schedule::IsCompute(action.op) ? 1 : 0;
  }
  return actions;
}

namespace {

absl::StatusOr<partition::Plan> WithRecomputed(const TinyRun& run, partition::Plan plan) {
  GivenPlan given = {.plan = std::move(plan), .recompute = run.recompute, .offload = run.offload};
  given.device = run.options.device;
  ASSIGN_OR_RETURN(PreparedRun prepared, PrepareRun(run.model, std::move(given)));
  return std::move(prepared.compiled.plan);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> TinyTrainer(const TinyRun& run) {
  const int micro_batches = run.replication.gradient_blocks % 3 == 0 ? 6 : kTinyMicroBatches;
  partition::Plan plan = EvenPlan(run.model, run.devices, run.schedule, micro_batches,
                                  kTinyMicroBatchRows, run.chunks, run.replication);
  if (!run.first_layer.empty()) plan.first_layer = run.first_layer;
  plan.tensor_parts = run.tensor_parts;
  ASSIGN_OR_RETURN(plan, WithRecomputed(run, std::move(plan)));
  return Trainer::Create(run.model, plan, run.options);
}

absl::StatusOr<TinyAnswer> AnswerOf(Trainer& trainer) {
  const Model& model = trainer.run().model;
  const int64_t batch_rows = trainer.plan().batch_rows();
  const auto data = TinyData(model, kTinySteps * batch_rows);
  const auto test_data = TinyData(model, batch_rows + 5);
  TinyAnswer answer;
  ASSIGN_OR_RETURN(answer.initial_hash, trainer.ParametersHash());
  for (int step = 0; step < kTinySteps; ++step) {
    ASSIGN_OR_RETURN(const StepResult result,
                     trainer.Step(*data, Rows(step * batch_rows, batch_rows)));
    answer.losses.push_back(result.loss);
    answer.gradient_norms.push_back(result.gradient_norm);
  }
  ASSIGN_OR_RETURN(const Evaluation evaluation, trainer.Evaluate(*test_data));
  answer.evaluation_loss = evaluation.loss;
  // Devices that share a head do not gather its outputs.
  if (trainer.plan().tensor_parts == 1) {
    ASSIGN_OR_RETURN(answer.outputs, trainer.Predict(*test_data));
  }
  ASSIGN_OR_RETURN(answer.final_hash, trainer.ParametersHash());
  return answer;
}

absl::StatusOr<TinyAnswer> AnswerOf(const TinyRun& run) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, TinyTrainer(run));
  return AnswerOf(*trainer);
}

}  // namespace stagecoach::engine
