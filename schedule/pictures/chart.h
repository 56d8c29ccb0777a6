#ifndef STAGECOACH_SCHEDULE_PICTURES_CHART_H_
#define STAGECOACH_SCHEDULE_PICTURES_CHART_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/pictures/html.h"

namespace stagecoach::schedule {

// The explorable picture of one or more traces (html.h) as parts of a page, which has one of them.
// The traces pass CheckTrace. Not part of the public interface.

// Two style elements: one with the rules of the page (html_assets.h) and `more`, and one with those
// of the picture (trace_style.h), which saved pictures take with them.
std::string ChartStyle(absl::Span<const NamedTrace> traces, absl::string_view more);

// Toolbar and picture, to stand in an element of class "card".
std::string ChartMarkup(absl::Span<const NamedTrace> traces);

// What draws it and shows details; at the end of the page's body.
std::string ChartScript(absl::Span<const NamedTrace> traces);

// How to use it, a paragraph of class "help".
extern const char kChartHelp[];

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_CHART_H_
