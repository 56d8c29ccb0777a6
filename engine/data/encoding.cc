#include "engine/data/encoding.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

std::string DataEncoding::NameOf(int64_t label) const {
  return class_names.empty() ? absl::StrCat(label) : class_names[static_cast<size_t>(label)];
}

}  // namespace stagecoach::engine
