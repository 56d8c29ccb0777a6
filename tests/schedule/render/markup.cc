#include "tests/schedule/render/markup.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace stagecoach::schedule {
namespace {

// Searches by hand, since std::regex would recurse over attributes of any length.
void CheckText(absl::string_view text) {
  for (size_t at = text.find('&'); at != absl::string_view::npos; at = text.find('&', at + 1)) {
    const absl::string_view name = text.substr(at + 1, text.find(';', at) - at - 1);
    EXPECT_TRUE(!name.empty() && name.size() < 8 &&
                std::all_of(name.begin(), name.end(),
                            [](unsigned char c) { return absl::ascii_isalnum(c) || c == '#'; }))
        << "bare '&' in: " << text.substr(at, 20);
  }
}

// `tag` is what stands between '<' and '>'.
Element ParseTag(absl::string_view tag) {
  absl::ConsumeSuffix(&tag, "/");
  const size_t name_end = std::min(tag.find_first_of(" \n"), tag.size());
  Element element;
  element.tag = std::string(tag.substr(0, name_end));
  EXPECT_TRUE(!element.tag.empty() &&
              std::all_of(element.tag.begin(), element.tag.end(),
                          [](unsigned char c) { return absl::ascii_isalnum(c); }))
      << "not a tag: " << element.tag;
  tag = absl::StripAsciiWhitespace(tag.substr(name_end));
  while (!tag.empty()) {
    const std::string name(tag.substr(0, tag.find_first_of("= \n")));
    tag.remove_prefix(name.size());
    absl::string_view value;
    if (absl::ConsumePrefix(&tag, "=")) {
      const size_t end = tag.find('"', 1);
      EXPECT_TRUE(absl::StartsWith(tag, "\"") && end != absl::string_view::npos)
          << "not quoted: " << name;
      value = tag.substr(1, end - 1);
      tag.remove_prefix(std::min(end, tag.size() - 1) + 1);
    }
    CheckText(value);
    EXPECT_TRUE(element.attributes.emplace(name, value).second) << "twice: " << name;
    tag = absl::StripLeadingAsciiWhitespace(tag);
  }
  return element;
}

}  // namespace

std::vector<Element> ParseMarkup(absl::string_view text, const std::vector<std::string>& empty) {
  std::vector<Element> elements;
  std::vector<std::string> open;
  while (true) {
    const size_t start = text.find('<');
    const absl::string_view before = text.substr(0, start);
    CheckText(before);
    if (start == absl::string_view::npos) break;
    const size_t end = text.find('>', start);
    EXPECT_NE(end, absl::string_view::npos) << "bare '<'";
    if (end == absl::string_view::npos) return elements;
    const absl::string_view tag = text.substr(start + 1, end - start - 1);
    text.remove_prefix(end + 1);
    if (absl::StartsWith(tag, "!")) continue;
    if (absl::StartsWith(tag, "/")) {
      EXPECT_TRUE(!open.empty() && open.back() == tag.substr(1)) << "unbalanced </" << tag << ">";
      if (open.empty()) return elements;
      open.pop_back();
      continue;
    }
    Element element = ParseTag(tag);
    element.text = std::string(text.substr(0, text.find('<')));
    const bool closed = absl::EndsWith(tag, "/") ||
                        std::find(empty.begin(), empty.end(), element.tag) != empty.end();
    if (!closed) open.push_back(element.tag);
    elements.push_back(element);
  }
  EXPECT_TRUE(open.empty()) << "never closed: " << (open.empty() ? "" : open.back());
  return elements;
}

std::vector<Element> ParsePage(std::string page) {
  for (const std::string tag : {"style", "script"}) {
    for (size_t at = page.find("<" + tag); at != std::string::npos; at = page.find("<" + tag, at)) {
      const size_t text = page.find('>', at) + 1;
      page.erase(text, page.find("</" + tag + ">", text) - text);
      at = text;
    }
  }
  return ParseMarkup(page, {"meta", "input"});
}

}  // namespace stagecoach::schedule
