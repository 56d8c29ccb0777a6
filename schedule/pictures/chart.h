#ifndef STAGECOACH_SCHEDULE_PICTURES_CHART_H_
#define STAGECOACH_SCHEDULE_PICTURES_CHART_H_

#include <string>

#include "schedule/trace.h"

namespace stagecoach::schedule {

// The explorable picture of a trace (html.h) as parts of a page, which has one of them. The trace
// passes CheckTrace. Not part of the public interface.

// The rules of the whole page (html_assets.h) and of the picture's colors (trace_style.h).
std::string ChartStyle(const Trace& trace);

// Toolbar and picture, to stand in an element of class "card".
std::string ChartMarkup(const Trace& trace);

// What draws it and shows details; at the end of the page's body.
std::string ChartScript(const Trace& trace);

// How to use it, a paragraph of class "help".
extern const char kChartHelp[];

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_PICTURES_CHART_H_
