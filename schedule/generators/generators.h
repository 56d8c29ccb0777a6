#ifndef STAGECOACH_SCHEDULE_GENERATORS_GENERATORS_H_
#define STAGECOACH_SCHEDULE_GENERATORS_GENERATORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/ir/placement.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::schedule {

// The shape that a generator fills. Every generator refuses p < 1, m < 1, v < 0, p * m * v above
// kMaxPasses, which no machine could hold, and p * p * v above it (more than 4,096 ranks).
struct ScheduleShape {
  int ranks = 1;          // p >= 1
  int micro_batches = 1;  // m >= 1
  int chunks = 0;         // v, stages per rank; 0: the generator's own number
};
inline constexpr int kMaxPasses = 1 << 24;

// A generator writes a compute schedule for a shape, or refuses the shape with InvalidArgument and
// the reason. A generated schedule has the name of its generator.
struct Generator {
  absl::string_view name;
  absl::string_view summary;  // one line, for --help
  Placement placement = Placement::kLoop;
  int chunks = 1;               // v unless the shape sets another number
  bool any_chunks = false;      // the shape may set another number
  bool fuses_backward = false;  // B and W are one operation (BW), whatever the shape
  absl::StatusOr<Schedule> (*generate)(const ScheduleShape& shape) = nullptr;
};

// All training schedules that follow a rule of their own, in the order in which to list them.
// ("auto" follows none: automatic.h.)
absl::Span<const Generator> Generators();

// Returns the generator called `name`. NotFound lists the known names and the nearest one.
absl::StatusOr<const Generator*> FindGenerator(absl::string_view name);

// Returns FindGenerator(name)->generate(shape).
absl::StatusOr<Schedule> Generate(absl::string_view name, const ScheduleShape& shape);

// Notation: rank r of p, micro-batches 0 ... m-1, v chunks; times F, B, W of one stage and BW = B +
// W; M_B and M_W of one stage as in stash.h. A bubble is a rank's idle time within its span,
// without latency. "Fits" means that m is large enough for the order to have its full form; for a
// smaller m the order is cut from that form. Micro-batches are always processed in order 0, 1, 2,
// ... in both directions.

// "gpipe". Rank r: F of all micro-batches, then BW of all of them. Bubble (p-1)(F+B+W), stash m M_B
// (Huang et al. 2019, whose backward pass runs in reverse: same bubble, same stash, but another
// order of summation).
absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape);

// "1f1b". Rank r: w = min(p-1-r, m) warm-up F; m-w times (F, BW); w times BW. Bubble (p-1)(F+B+W),
// stash min(p-r, m) M_B (PipeDream-Flush, Narayanan et al. 2021).
absl::StatusOr<Schedule> OneFOneB(const ScheduleShape& shape);

// "interleaved". v chunks in a loop, any number, 2 by default; needs p | m. Rank r: warm-up of w =
// min(2(p-1-r) + (v-1)p, mv) F; then F, BW; then BW. The k-th F is of chunk c = (k mod pv) / p and
// micro-batch (k / pv) p + k mod p; the k-th BW is of the same micro-batch and chunk v-1-c. Bubble
// (p-1)(F+B+W), stash (2(p-1-r) + (v-1)p + 1) M_B (Narayanan et al. 2021).
absl::StatusOr<Schedule> Interleaved(const ScheduleShape& shape);

// "looped-bfs". v chunks in a loop, any number, 2 by default. F of all micro-batches for chunk 0,
// for chunk 1, ...; then BW for the chunks in reverse. Bubble (p-1)(F+B+W), stash v m M_B
// (Lamy-Poirier 2023). Fits: m >= p.
absl::StatusOr<Schedule> LoopedBfs(const ScheduleShape& shape);

// "zb-h1". Rank r: 1F1B with B in place of BW; from the r-th B on (counting from 0) one W after
// each B; the remaining W at the end. Bubble (p-1)(F+B-W) for W <= F; stash (p-r) M_B + r M_W (Qi
// et al. 2023). Fits: m >= p.
absl::StatusOr<Schedule> ZeroBubbleH1(const ScheduleShape& shape);

// "zb-h2". Rank r: min(2(p-r)-1, m) F; then B, W (once at least 2r B are done), F; then the
// remaining W. Bubble (p-1)(F+B-2W) for W <= min(F,B), stash (2(p-r)-1) M_B + 2r M_W (Qi et al.
// 2023). Fits: m >= 2p.
absl::StatusOr<Schedule> ZeroBubbleH2(const ScheduleShape& shape);

// "zb-v". 2 chunks in V placement, B and W apart. Bubble, in times of a whole device, (p-1)(B-W)
// for W <= F <= B, and at most (p-1)(F-W) for W <= B < F: 0 if all are equal. Stash 2p M_B on every
// rank, as much as on 1F1B's first rank (Qi et al. 2023). Fits: m >= 2p.
absl::StatusOr<Schedule> ZeroBubbleV(const ScheduleShape& shape);

// "v-half", "v-min". 2 chunks in V placement, B and W apart; about 1/2 and 1/3 of 1F1B's largest
// stash (Qi et al. 2024, "Pipeline parallelism with controllable memory"). The passes of one
// micro-batch form a block of unit times, which repeats every 6 units on every rank: its hops from
// rank to rank decide how long a stash lives.
absl::StatusOr<Schedule> VHalf(const ScheduleShape& shape);
absl::StatusOr<Schedule> VMin(const ScheduleShape& shape);

// "dualpipe-v". 2 chunks in V placement; F and BW of different micro-batches as one overlapped
// operation in the steady phase, B and W apart while filling and draining. Bubble, in times of a
// chunk and for W <= F, B: if F = B, (p-1)(FB + BW - 3W) on the last rank, as published, and no
// more on others; if overlapping gains nothing, (p-1)(2F + B - W) on every rank for F >= B, and
// (p-1)(F + 2B - W) - min(F, (p-1)(B-F)) for F < B. Stash (2p+1) M_B. Needs m >= 2p (DeepSeek-AI
// 2024, "cut in half" by Qi et al.).
absl::StatusOr<Schedule> DualPipeV(const ScheduleShape& shape);

// "forward". Evaluation under a placement: F of every micro-batch on every stage, each as early as
// a pipeline of equal stages allows. Not in Generators(), since it cannot train. InvalidArgument:
// no stage, a rank outside `ranks`, m < 1, too many passes.
absl::StatusOr<Schedule> ForwardOnly(const std::vector<Rank>& rank_of_stage, int ranks,
                                     int micro_batches);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_GENERATORS_GENERATORS_H_
