// The table of generators. The generators themselves are in one_stage_per_rank.cc, looped.cc,
// v_placement.cc, building_block.cc and forward_only.cc.

#include "schedule/generators/generators.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"

namespace stagecoach::schedule {
namespace {

constexpr Generator kGenerators[] = {
    {.name = "gpipe",
     .summary = "all forward passes, then all backward passes",
     .fuses_backward = true,
     .generate = GPipe},
    {.name = "1f1b",
     .summary = "one forward, one backward in turn; stashes as many micro-batches as ranks",
     .fuses_backward = true,
     .generate = OneFOneB},
    {.name = "interleaved",
     .summary = "1f1b over several chunks per rank; a smaller bubble, more messages",
     .chunks = 2,
     .any_chunks = true,
     .fuses_backward = true,
     .generate = Interleaved},
    {.name = "looped-bfs",
     .summary = "all forward passes chunk by chunk, then all backward passes in reverse",
     .chunks = 2,
     .any_chunks = true,
     .fuses_backward = true,
     .generate = LoopedBfs},
    {.name = "zb-h1",
     .summary = "1f1b with weight gradients apart, a third of its bubble, the same stash",
     .generate = ZeroBubbleH1},
    {.name = "zb-h2",
     .summary = "zb-h1 with up to twice the stash and almost no bubble",
     .generate = ZeroBubbleH2},
    {.name = "zb-v",
     .summary = "two chunks in a V; almost no bubble with the stash of 1f1b",
     .placement = Placement::kV,
     .chunks = 2,
     .generate = ZeroBubbleV},
    {.name = "v-half",
     .summary = "two chunks in a V with half the stash of 1f1b",
     .placement = Placement::kV,
     .chunks = 2,
     .generate = VHalf},
    {.name = "v-min",
     .summary = "two chunks in a V with a third of the stash of 1f1b",
     .placement = Placement::kV,
     .chunks = 2,
     .generate = VMin},
    {.name = "dualpipe-v",
     .summary = "two chunks in a V; forward and backward of two micro-batches overlapped",
     .placement = Placement::kV,
     .chunks = 2,
     .generate = DualPipeV},
};

}  // namespace

absl::Span<const Generator> Generators() { return kGenerators; }

absl::StatusOr<const Generator*> FindGenerator(absl::string_view name) {
  std::vector<std::string> known;
  for (const Generator& generator : Generators()) {
    if (generator.name == name) return &generator;
    known.emplace_back(generator.name);
  }
  const std::string nearest = base::Nearest(name, known);
  return absl::NotFoundError(
      absl::StrCat("no schedule is called \"", name, "\"; known are ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::StatusOr<Schedule> Generate(absl::string_view name, const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(const Generator* const generator, FindGenerator(name));
  return generator->generate(shape);
}

}  // namespace stagecoach::schedule
