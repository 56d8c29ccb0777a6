#include "engine/data/encoding.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

std::string DataEncoding::NameOf(int64_t label) const {
  // A model may have more outputs than its data have classes.
  const auto index = static_cast<size_t>(label);
  return index < class_names.size() ? class_names[index] : absl::StrCat(label);
}

bool DataEncoding::EncodesAs(const DataEncoding& other) const {
  DataEncoding same = *this;
  same.rows_move = other.rows_move;
  return same == other;
}

}  // namespace stagecoach::engine
