#include "engine/models/named_outputs.h"

#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace stagecoach::engine {
namespace {

// If the two do not fit, any shape will do, since the layer will refuse them.
Shape Concatenated(const Shape& input, const Shape& skip) {
  if (input.rank() == 0 || input.rank() != skip.rank()) return input;
  std::vector<int64_t> extents = {input.dim(0) + skip.dim(0)};
  for (int i = 1; i < input.rank(); ++i) extents.push_back(input.dim(i));
  return Shape(extents);
}

}  // namespace

absl::Status NamedOutputs::Connect(int index, const std::string& path, ParsedLayer& layer) {
  if (layer.from.empty()) return absl::OkStatus();
  const auto found = absl::c_find_if(
      outputs_, [&layer](const NamedOutput& output) { return output.name == layer.from; });
  if (found == outputs_.end()) {
    const std::string names =
        absl::StrJoin(outputs_, ", ", [](std::string* out, const NamedOutput& output) {
          absl::StrAppend(out, absl::CHexEscape(output.name));
        });
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".from: no layer before this one is called \"",
                     absl::CHexEscape(layer.from), "\", those with a name are [", names, "]"));
  }
  skips_.push_back({found->layer, index});
  if (layer.concatenates) {
    layer.output_of = [skip = found->sample](const Shape& input) {
      return Concatenated(input, skip);
    };
  }
  return absl::OkStatus();
}

absl::Status NamedOutputs::Add(int index, const std::string& path, const ParsedLayer& layer,
                               const Shape& sample) {
  if (layer.name.empty()) return absl::OkStatus();
  if (absl::c_any_of(outputs_,
                     [&layer](const NamedOutput& output) { return output.name == layer.name; })) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ".name: an earlier layer is also called \"", absl::CHexEscape(layer.name), "\""));
  }
  outputs_.push_back({layer.name, index, sample});
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
