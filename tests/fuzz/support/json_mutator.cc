#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/text/json.h"

// Changes the value that a text stands for. Mutations of bytes alone, which are made as often,
// seldom leave a valid file of several parts.

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace stagecoach::fuzz {
namespace {

using nlohmann::json;

class JsonMutator {
 public:
  explicit JsonMutator(unsigned seed) : random_(seed) {}

  void Edit(json& document) {
    std::vector<json*> nodes;
    List(document, nodes);
    json& node = *nodes[Below(nodes.size())];
    json copy = *nodes[Below(nodes.size())];  // a copy: it may have the node inside it
    switch (Below(5)) {
      case 0:
        node = std::move(copy);
        break;
      case 1:
        node = Number();
        break;
      case 2:
        if (node.is_structured() && !node.empty()) node.erase(Element(node));
        break;
      case 3:
        EditArray(node, std::move(copy));
        break;
      default:
        EditScalar(node);
    }
  }

  size_t Below(size_t n) { return random_() % n; }

 private:
  static void List(json& node, std::vector<json*>& nodes) {
    nodes.push_back(&node);
    if (!node.is_structured()) return;
    for (json& inside : node) List(inside, nodes);
  }

  json::iterator Element(json& node) {
    return std::next(node.begin(), static_cast<std::ptrdiff_t>(Below(node.size())));
  }

  // Returns a number where limits are likely.
  json Number() {
    if (Below(4) == 0) return 1.0 / static_cast<double>(1 + Below(10));
    const uint64_t power = uint64_t{1} << Below(64);
    switch (Below(4)) {
      case 0:
        return power;
      case 1:
        return power - 1;
      case 2:
        return -static_cast<int64_t>(power - 1);
      default:
        return static_cast<double>(power) * static_cast<double>(power);
    }
  }

  void EditArray(json& node, json copy) {
    if (!node.is_array() || node.empty()) return;
    if (Below(2) == 0) {
      std::swap(*Element(node), *Element(node));
    } else {
      node.insert(Element(node), Below(2) == 0 ? json(*Element(node)) : std::move(copy));
    }
  }

  void EditScalar(json& node) {
    if (node.is_boolean()) {
      node = !node.get<bool>();
    } else if (node.is_number_unsigned() && node.get<uint64_t>() > 0) {
      const uint64_t value = node.get<uint64_t>();
      node = Below(2) == 0 ? value - 1 : value + 1;
    } else if (node.is_string() && !node.get_ref<std::string&>().empty()) {
      std::string& text = node.get_ref<std::string&>();
      char& letter = text[Below(text.size())];
      if (letter > ' ') letter = static_cast<char>('!' + Below('~' - '!'));
    }
  }

  std::mt19937 random_;
};

}  // namespace
}  // namespace stagecoach::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  stagecoach::fuzz::JsonMutator mutator(seed);
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  absl::StatusOr<nlohmann::json> document = stagecoach::base::ParseJson(input);
  if (!document.ok() || mutator.Below(2) == 0) return LLVMFuzzerMutate(data, size, max_size);
  for (size_t edits = 1 + mutator.Below(3); edits > 0; --edits) mutator.Edit(*document);
  const std::string text = document->dump();
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
