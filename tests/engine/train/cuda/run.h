#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_CUDA_RUN_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_CUDA_RUN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/train/trainer.h"
#include "partition/cost/replication.h"

// A run of a small network that is quick under the emulator of CUDA kernels.
namespace stagecoach::engine {

// A number of micro-batches that every schedule takes on 1 to 4 devices.
inline constexpr int kTinyMicroBatches = 8;
inline constexpr int kTinySteps = 2;
inline constexpr int64_t kTinyMicroBatchRows = 3;
inline constexpr int64_t kTinyBatchRows = kTinyMicroBatches * kTinyMicroBatchRows;

// Returns eight layers of every kind, the widest with 16 features; no extent except that of the
// batch is a multiple of 16.
Model TinyModel();

// Returns residual blocks and layer norms in every order in which a block can leave its final sum
// to the next layer, between two linear layers, all 16 wide.
Model BlocksModel();

// Returns a linear layer with GELU, two residual blocks and a linear layer, all 16 wide: the
// default network in small. Unlike in TinyModel, no layer norm has rows of nearly equal values,
// which would magnify rounding errors without bound.
Model TameModel();

// Returns a transformer block without attention, between linear layers; all 16 wide.
Model FeedForwardModel();

// Returns a token model: an embedding, a block with attention and one without, and a head, which
// has the embedding's table; all 8 wide.
Model TokenModel();

// Return a GPT-2 with a tied head, a Llama with grouped queries and a Gemma with a window, of 8
// features, and a GPT-NeoX whose attention and MLP are parallel. Each has nine layers.
Model Gpt2Model();
Model LlamaModel();
Model GptNeoXModel();
Model GemmaModel();

// Returns a Llama for samples of several documents.
Model PackedModel();

// Returns a frozen GPT-2 of five layers whose linear layers have adapters with dropout.
Model LoraModel();
// Returns a wider one with weights in 4 bits, some of which few rows are multiplied by as they are
// stored.
Model QuantizedModel();

// Returns a GPT-2 and a Llama whose layers are cut into four blocks.
Model BlockedGpt2Model();
Model BlockedLlamaModel();
Model BlockedGemmaModel();
// Returns one whose blocks have biases of 6 numbers.
Model UnalignedModel();

// Returns samples for one of these models; the same in every call.
std::shared_ptr<const Dataset> TinyData(const Model& model, int64_t rows);

struct TinyRun {
  Model model = TinyModel();
  int devices = 1;
  int tensor_parts = 1;
  std::string schedule = "gpipe";
  int chunks = 0;                // 0: the schedule's own number
  std::vector<int> first_layer;  // of each stage; empty: as evenly as possible
  partition::Replication replication = {};
  Recompute recompute = Recompute::kPlanned;
  double offload = 0.0;  // Plan::offload
  TrainerOptions options;
};

// Everything that a run produces and that must not depend on the partition.
struct TinyAnswer {
  std::vector<double> losses;
  std::vector<double> gradient_norms;
  double evaluation_loss = 0.0;
  std::vector<float> outputs;
  std::string initial_hash, final_hash;

  friend bool operator==(const TinyAnswer&, const TinyAnswer&) = default;
};
void PrintTo(const TinyAnswer& answer, std::ostream* out);

// Returns how many GPUs this machine has; also 0 if the backend cannot be loaded.
int NumGpus();

// Returns the number of compute actions of all ranks.
int64_t ComputeActions(const schedule::Schedule& schedule);

absl::StatusOr<std::unique_ptr<Trainer>> TinyTrainer(const TinyRun& run);
// Trains kTinySteps steps, and evaluates and predicts rows that are not a whole number of batches.
absl::StatusOr<TinyAnswer> AnswerOf(Trainer& trainer);
absl::StatusOr<TinyAnswer> AnswerOf(const TinyRun& run);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_CUDA_RUN_H_
