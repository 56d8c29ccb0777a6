#ifndef STAGECOACH_SCHEDULE_RENDER_HTML_ASSETS_H_
#define STAGECOACH_SCHEDULE_RENDER_HTML_ASSETS_H_

namespace stagecoach::schedule {

// Parts of the page (html.h) that are the same for every trace.

// Style of the page around the picture, whose own style is in trace_style.h.
extern const char kPageStyle[];

// Draws the picture into <svg id="chart">, reacts to the reader, and saves the visible part with
// the rules in <style id="look">. Expects a constant `D` with:
//   step, unitNs, unit  length of the longest step, and the unit of shown times
//   ops                 names of the operations
//   colors              their letters (trace_style.h)
//   traces              one below the other, each with
//     name              as markup; shown if there are several
//     step              its length
//     chunks            index: stage
//     ranks             for each its slices: [operation, stage, micro-batch or -1, start minus the
//                       start of the slice before, duration, track (trace_parts.h)]
//     stash             null, or inBytes, and ranks: for each its peak, at (when that was reached)
//                       and levels: [start minus the start of the level before, amount]
//     messages          [1 if gradient, from rank, start, to rank, end]
//     copies            between device and host: [operation, stage, rank, start, end]
extern const char kPageScript[];

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_HTML_ASSETS_H_
