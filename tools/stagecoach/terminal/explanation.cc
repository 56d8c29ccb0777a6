#include "tools/stagecoach/terminal/explanation.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text/units.h"

namespace stagecoach::tools {
namespace {

constexpr const char* kTo = " -> ";

// Returns "100 x 10": that many samples of the shape.
std::string ShapeOf(int64_t rows, const engine::Shape& sample) {
  std::string text = absl::StrCat(rows);
  for (int i = 0; i < sample.rank(); ++i) absl::StrAppend(&text, " x ", sample.dim(i));
  return text;
}

int64_t ParametersOf(const partition::CompiledPlan& report) {
  int64_t parameters = 0;
  for (const partition::StageReport& stage : report.stages) parameters += stage.parameters;
  return parameters;
}

class Explainer {
 public:
  explicit Explainer(const engine::PreparedRun& run)
      : run_(run),
        plan_(run.plan()),
        rows_(plan_.micro_batch_rows),
        parameters_(ParametersOf(run.compiled)) {}

  Explanation Explain() {
    const engine::Shape& input = run_.profile.inputs.front();
    const engine::Shape& output = run_.profile.output;
    const int64_t share = plan_.batch_rows() / plan_.replicas();
    const int own = plan_.schedule.num_micro_batches;
    const std::string scattered = absl::StrCat(plan_.replicas(), " replicas x ");

    const std::string batch = ShapeOf(plan_.batch_rows(), input);
    Pass("batch " + batch);
    Add("batch", batch,
        run_.model.takes_ids() ? "rows x tokens of a sample" : "rows x features of a sample");
    if (plan_.replicas() > 1) {
      Pass(scattered + ShapeOf(share, input));
      Add("scatter", scattered + ShapeOf(share, input), "each replica takes consecutive rows");
      Add("replicate", absl::StrCat(scattered, base::FormatCount(parameters_), " parameters"),
          "once, before the first step; they stay equal");
    }
    if (own > 1) {
      const std::string cut = absl::StrCat(own, " micro-batches x ", ShapeOf(rows_, input));
      Pass(cut);
      Add("cut", cut,
          plan_.replicas() > 1 ? "each replica: they enter stage 0 one after the other"
                               : "they enter stage 0 one after the other");
    }
    for (int stage = 0; stage < plan_.num_stages(); ++stage) AddStage(stage);
    Pass(absl::StrCat(plan_.num_stages(), plan_.num_stages() == 1 ? " stage" : " stages"));
    Pass(ShapeOf(rows_, output));
    Add("loss", absl::StrCat(ShapeOf(rows_, output), kTo, 1), run_.profile.loss_spec.description);
    AddGradients();
    const std::string gathered = ShapeOf(plan_.batch_rows(), output);
    Pass("gather " + gathered);
    Add("gather",
        plan_.replicas() > 1 ? absl::StrCat(scattered, ShapeOf(share, output), kTo, gathered)
                             : gathered,
        "outputs, when they are asked for; training gathers the losses alone");
    return std::move(explanation_);
  }

 private:
  void Add(std::string step, std::string shapes, std::string note) {
    explanation_.rows.push_back({std::move(step), std::move(shapes), std::move(note)});
  }
  void Pass(absl::string_view shapes) {
    absl::StrAppend(&explanation_.summary, explanation_.summary.empty() ? "" : kTo, shapes);
  }

  // Returns "25 x 10 -> 25 x 64".
  std::string ShapesOfLayer(int layer) const {
    const auto index = static_cast<size_t>(layer);
    const bool is_last = index + 1 == run_.profile.inputs.size();
    return absl::StrCat(
        ShapeOf(rows_, run_.profile.inputs[index]), kTo,
        ShapeOf(rows_, is_last ? run_.profile.output : run_.profile.inputs[index + 1]));
  }

  void AddStage(int index) {
    const partition::StageReport& stage = run_.compiled.of(schedule::StageId(index));
    const auto name = [this](int layer) -> const std::string& {
      return run_.profile.layers[static_cast<size_t>(layer)].name;
    };
    for (int first = stage.first_layer; first <= stage.last_layer;) {
      int last = first;
      while (last < stage.last_layer && name(last + 1) == name(first)) ++last;
      const bool is_one = first == last;
      Add(first == stage.first_layer ? absl::StrCat("stage ", index) : "", ShapesOfLayer(first),
          absl::StrCat(is_one ? absl::StrCat("layer ", first)
                              : absl::StrCat("layers ", first, "-", last, ", each"),
                       ": ", name(first)));
      first = last + 1;
    }
  }

  void AddGradients() {
    const std::string gradients = absl::StrCat(base::FormatCount(parameters_), " gradients");
    Add("backward", absl::StrCat(ShapeOf(rows_, run_.profile.output), kTo, gradients),
        "the stages in reverse; gradients are summed over micro-batches");
    const auto& replication = plan_.replication;
    const int blocks = replication.gradient_blocks;
    if (blocks == 1) return;
    const bool in_ring = replication.reduction == partition::ReductionKind::kRing;
    Add("average",
        plan_.replicas() > 1
            ? absl::StrCat(plan_.replicas(), " replicas x ", gradients, kTo, gradients)
            : gradients,
        absl::StrCat(plan_.micro_batches(), " micro-batches, summed in ",
                     in_ring ? "gradient blocks, and these by a library"
                             : absl::StrCat("a tree of ", blocks, " gradient blocks"),
                     replication.shards_optimizer
                         ? "; each replica updates a share of the parameters"
                         : ""));
  }

  const engine::PreparedRun& run_;
  const partition::Plan& plan_;
  const int64_t rows_;  // of a micro-batch
  const int64_t parameters_;
  Explanation explanation_;
};

}  // namespace

Explanation ExplainStep(const engine::PreparedRun& run) { return Explainer(run).Explain(); }

}  // namespace stagecoach::tools
