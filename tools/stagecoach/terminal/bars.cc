#include "tools/stagecoach/terminal/bars.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/units.h"

namespace stagecoach::tools {
namespace {

constexpr int kMinBarColumns = 5;
constexpr int kMaxBarColumns = 30;

std::string PerSecond(double count, const char* what) {
  return absl::StrCat(base::FormatCount(std::llround(count)), " ", what, "/s");
}

std::string Head(const engine::FitProgress& progress, int epochs) {
  return absl::StrFormat("epoch %d/%d", progress.epoch, epochs);
}

std::vector<std::string> Parts(const engine::FitProgress& progress, int64_t tokens) {
  const double share = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
  return {
      absl::StrFormat("%3.0f %%", std::floor(100 * share)),
      absl::StrFormat("loss %.4f", progress.loss),
      tokens == 0 ? PerSecond(progress.samples_per_second, "samples")
                  : PerSecond(progress.samples_per_second * static_cast<double>(tokens), "tokens"),
      progress.step < progress.steps
          ? absl::StrCat(base::FormatDuration(progress.remaining), " left")
          : "evaluating",
  };
}

}  // namespace

std::string Bar(double share, int width) {
  static constexpr const char* kPartialBlocks[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = std::isnan(share) ? 0.0 : std::clamp(share, 0.0, 1.0);
  const int eighths = static_cast<int>(std::lround(filled * 8 * width));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kPartialBlocks[eighths % 8];
  const int used = (eighths + 7) / 8;
  return bar + std::string(static_cast<size_t>(width - used), ' ');
}

std::string ProgressLine(const engine::FitProgress& progress, int epochs, int columns,
                         int64_t tokens) {
  const double share = static_cast<double>(progress.step) / static_cast<double>(progress.steps);
  const std::string head = Head(progress, epochs);
  int room = columns - static_cast<int>(head.size());
  std::string tail;
  for (const std::string& part : Parts(progress, tokens)) {
    const int width = static_cast<int>(part.size()) + 2;
    if (width > room) break;
    room -= width;
    absl::StrAppend(&tail, "  ", part);
  }
  const int bar = std::min(room - 2, kMaxBarColumns);
  return absl::StrCat(head, bar < kMinBarColumns ? "" : absl::StrCat("  ", Bar(share, bar)), tail);
}

std::string PlainProgress(const engine::FitProgress& progress, int epochs, int64_t tokens) {
  return absl::StrCat(Head(progress, epochs), "  ", absl::StrJoin(Parts(progress, tokens), "  "));
}

bool ProgressPace::IsDue(const engine::FitProgress& progress, absl::Time now) {
  ++steps_;
  if (now - last_ < kInterval || 10 * steps_ < progress.steps) return false;
  last_ = now;
  steps_ = 0;
  return true;
}

}  // namespace stagecoach::tools
