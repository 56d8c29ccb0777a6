#ifndef STAGECOACH_PARTITION_SEARCH_EVALUATE_PLAN_H_
#define STAGECOACH_PARTITION_SEARCH_EVALUATE_PLAN_H_

#include "absl/status/statusor.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/cut_evaluator.h"

namespace stagecoach::partition {

// Returns EvaluationOf (evaluation_of.h) for a cut of a pipeline.
absl::StatusOr<PlanEvaluation> EvaluatePlan(const CutEvaluator& pipeline,
                                            const CutEvaluator::Cut& cut, const Profile& profile,
                                            const Cluster& cluster, PlanObjective objective);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_EVALUATE_PLAN_H_
