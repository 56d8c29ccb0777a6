#ifndef STAGECOACH_SCHEDULE_PICTURES_CHART_H_
#define STAGECOACH_SCHEDULE_PICTURES_CHART_H_

#include <string>

#include "absl/types/span.h"
#include "schedule/pictures/html.h"

namespace stagecoach::schedule {

// The explorable picture of one or more traces (html.h) as parts of a page, which has one of them.
// The traces pass CheckTrace. Not part of the public interface.

// The rules of the whole page (html_assets.h) and of the picture's colors (trace_style.h).
std::string ChartStyle(absl::Span<const NamedTrace> traces);

// Toolbar and picture, to stand in an element of class "card".
std::string ChartMarkup(absl::Span<const NamedTrace> traces);

// What draws it and shows details; at the end of the page's body.
std::string ChartScript(absl::Span<const NamedTrace> traces);

// How to use it, a paragraph of class "help".
extern const char kChartHelp[];

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_CHART_H_
