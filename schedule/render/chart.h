#ifndef STAGECOACH_SCHEDULE_RENDER_CHART_H_
#define STAGECOACH_SCHEDULE_RENDER_CHART_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "schedule/render/html.h"

namespace stagecoach::schedule {

// The explorable picture of one or more traces (html.h) as parts of a page, at most one per page.
// The traces pass CheckTrace. Not part of the public interface.

// Returns two style elements: one with the rules of the page (html_assets.h) and `more`, and one
// with those of the picture (trace_style.h), which are stored in saved pictures.
std::string ChartStyle(absl::Span<const NamedTrace> traces, absl::string_view more);

// Returns the toolbar and the picture, to stand in an element of class "card".
std::string ChartMarkup(absl::Span<const NamedTrace> traces);

// Returns the script that draws the picture and shows details; belongs at the end of the page's
// body.
std::string ChartScript(absl::Span<const NamedTrace> traces);

// Instructions for use, a paragraph of class "help".
extern const char kChartHelp[];

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_RENDER_CHART_H_
