#ifndef STAGECOACH_TESTS_SCHEDULE_RENDER_MARKUP_H_
#define STAGECOACH_TESTS_SCHEDULE_RENDER_MARKUP_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace stagecoach::schedule {

struct Element {
  std::string tag;
  std::map<std::string, std::string> attributes;  // values as written
  std::string text;                               // what directly follows the start tag
};

// Returns the elements of a text in the subset of XML that the pictures use, in the order in which
// they start. Adds a test failure if tags are not balanced, an attribute is not quoted, or '<' or
// '&' is bare. `empty`: tags that are never closed (HTML's).
std::vector<Element> ParseMarkup(absl::string_view text,
                                 const std::vector<std::string>& empty = {});

// Returns the elements of an HTML page, without the contents of its styles and scripts.
std::vector<Element> ParsePage(std::string page);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_RENDER_MARKUP_H_
