#include "schedule/render/html.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "schedule/render/chart.h"
#include "schedule/render/html_assets.h"
#include "schedule/render/trace_style.h"

namespace stagecoach::schedule {
namespace {

std::string Header(const PageText& text) {
  std::string header = absl::StrCat("<header><h1>", EscapeMarkup(text.title), "</h1>");
  if (!text.facts.empty()) {
    const std::string facts =
        absl::StrJoin(text.facts, "", [](std::string* html, const PageText::Fact& fact) {
          absl::StrAppend(html, "<div><dt>", EscapeMarkup(fact.label), "</dt><dd>",
                          EscapeMarkup(fact.value), "</dd></div>");
        });
    absl::StrAppend(&header, "<dl class=\"facts\">", facts, "</dl>");
  }
  return header + "</header>";
}

std::string TableRow(const PageText& text, const std::vector<std::string>& cells,
                     absl::string_view tag) {
  std::string row = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool is_left = i == 0 || text.columns[i].empty();
    absl::StrAppend(&row, "<", tag, is_left ? " class=\"left\">" : ">", EscapeMarkup(cells[i]),
                    "</", tag, ">");
  }
  return row + "</tr>\n";
}

std::string TableCard(const PageText& text) {
  if (text.columns.empty()) return "";
  std::string table = "<div class=\"card scroll\"><table><thead>" +
                      TableRow(text, text.columns, "th") + "</thead><tbody>";
  for (const std::vector<std::string>& row : text.rows) {
    STAGECOACH_CHECK(row.size() == text.columns.size(),
                     absl::StrCat("a row of ", row.size(), " cells in a table of ",
                                  text.columns.size(), " columns"));
    table += TableRow(text, row, "td");
  }
  return table + "</tbody></table></div>";
}

}  // namespace

std::string HtmlDocument(const std::string& title, const std::string& head,
                         const std::string& body) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
      EscapeMarkup(title), "</title>\n", head, "</head>\n<body>\n", body, "\n</body>\n</html>\n");
}

std::string ToHtml(absl::Span<const NamedTrace> traces, const PageText& text) {
  const std::string table = TableCard(text);
  const bool is_summary = traces.size() > 1;  // shown before the traces that it summarizes
  return HtmlDocument(
      text.title, ChartStyle(traces, ""),
      absl::StrCat(Header(text),
                   is_summary ? absl::StrCat("\n<div class=\"beside\">", table, "</div>") : "",
                   "\n<div class=\"card\">", ChartMarkup(traces), "</div>\n<div class=\"beside\">",
                   is_summary ? "" : table, kChartHelp, "</div>\n", ChartScript(traces)));
}

std::string ToHtml(const Page& page) {
  return HtmlDocument(
      page.text.title, absl::StrCat("<style>", kPageStyle, page.style, "</style>\n"),
      absl::StrCat(Header(page.text), "\n<div class=\"beside\">", TableCard(page.text),
                   "</div>\n<div class=\"card\">", page.picture, "</div>"));
}

}  // namespace stagecoach::schedule
