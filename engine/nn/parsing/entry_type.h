#ifndef STAGECOACH_ENGINE_NN_PARSING_ENTRY_TYPE_H_
#define STAGECOACH_ENGINE_NN_PARSING_ENTRY_TYPE_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

namespace stagecoach::engine {

// Returns the type of entry `i` of a list of layers in a model file; "" if there is none.
inline std::string TypeAt(const nlohmann::json& list, size_t i) {
  if (i >= list.size() || !list[i].is_object()) return "";
  const auto type = list[i].find("type");
  return type != list[i].end() && type->is_string() ? type->get<std::string>() : "";
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARSING_ENTRY_TYPE_H_
