#ifndef STAGECOACH_PARTITION_IO_EXPORTS_H_
#define STAGECOACH_PARTITION_IO_EXPORTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/plan/plan.h"

namespace stagecoach::partition {

// Exports plans in the formats of other programs (docs/planner.md says how each is applied).
// `layer_names`: in the order of the plan. InvalidArgument, with the reason: the plan fails
// CheckPlan, there are not as many names as layers, or the program cannot follow the plan. None of
// them can if the layers of a graph are taken in another order than the model performs them.

// Exports for torch.distributed.pipelining, an object with a key per line:
//   split_points       names of the modules with which a stage begins, except the first stage
//   stages, microbatches (of each replica), microbatch_rows
//   schedule           name of the order that ToTorchScheduleCsv writes
//   rank_of_stage
//   replicas           number of replicas of every stage, if above 1
//   recomputed_layers  names of the modules to checkpoint, if any
// Also refused if one of these layers has a name that no module can have.
absl::StatusOr<std::string> ToTorchPlanJson(const Plan& plan,
                                            absl::Span<const std::string> layer_names);

// Exports the order of the computations as PyTorch's _load_csv(..., format="compute_only") reads it
// (schedule/io/csv.h); PyTorch adds the messages. Any order and placement is kept.
// FailedPrecondition: the plan's schedule cannot be performed.
absl::StatusOr<std::string> ToTorchScheduleCsv(const Plan& plan);

// Exports the same with the messages, as format="compute_comms" reads it, where they stand in a run
// here; with a REDUCE_GRAD of each stage that trains, by which PyTorch also divides gradients by
// the number of micro-batches. Errors: those of ToTorchScheduleCsv.
absl::StatusOr<std::string> ToTorchLoweredCsv(const Plan& plan);

// Exports the bounds of the stages for DeepSpeed, as PipelineModule keeps them in `parts`: "[0, 5,
// 10, 20]" assigns the layers 5 to 9 to stage 1. Also refused unless stage i is the only one of
// rank i, and ranks perform 1F1B.
absl::StatusOr<std::string> ToDeepSpeedParts(const Plan& plan);

// Export, for Megatron-LM, --pipeline-model-parallel-layout: "Et*5|(t*6|)*2,t*5L" has four stages,
// of embedding and 5 transformer layers, 6, 6, and 5 and the loss with the output layer. Also
// refused unless
//  - the name of the first layer contains "emb" or "wte", that of the last "head", "logits", "loss"
//    or "output", in any case, and all between have the same name except for numbers;
//  - the stages go around the ranks in a loop: stage s on rank s mod ranks (not in a V);
//  - ranks perform 1F1B, interleaved if they have several stages.
// CheckMegatronLayers checks the first of these three, which is known before there is a plan.
absl::Status CheckMegatronLayers(absl::Span<const std::string> layer_names);
absl::StatusOr<std::string> ToMegatronLayout(const Plan& plan,
                                             absl::Span<const std::string> layer_names);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_EXPORTS_H_
