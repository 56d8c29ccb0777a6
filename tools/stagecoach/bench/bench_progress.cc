#include "tools/stagecoach/bench/bench_progress.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {

BenchProgress::~BenchProgress() { RedrawErrorLine(""); }

void BenchProgress::Tell(const std::string& doing) const {
  if (!CanRedrawErrorLine()) return;
  std::string line = absl::StrFormat("%d of %d: %s: %s", done_ + 1, all_, what_, doing);
  if (measured_ > 0) {
    const absl::Duration left = (absl::Now() - start_) / measured_ * (all_ - done_);
    absl::StrAppend(&line, ", ", base::FormatDuration(left), " left");
  }
  RedrawErrorLine(line.substr(0, 78));
}

void BenchProgress::End(int given_up) {
  ++done_;
  ++measured_;
  all_ -= given_up;
}

}  // namespace stagecoach::tools
