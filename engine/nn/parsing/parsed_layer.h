#ifndef STAGECOACH_ENGINE_NN_PARSING_PARSED_LAYER_H_
#define STAGECOACH_ENGINE_NN_PARSING_PARSED_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/text/json.h"
#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"
#include "engine/nn/parsing/lora.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::engine {

// The most outputs of a layer in a model file.
inline constexpr int64_t kMaxFileOutputs = int64_t{1} << 20;
inline constexpr base::Int64Range kFileCounts = {.min = 1, .max = kMaxFileOutputs};

// A layer that a model file describes (engine/models/model_file.h).
struct ParsedLayer {
  std::vector<LayerFactory> factories;  // several for a sequence
  int64_t repeat = 1;
  int64_t layers = 1;         // itself and those inside, counted once
  bool is_tied = false;       // a head whose weight is the embedding's table
  std::string name;           // for a later layer that reads its output; empty: none
  std::string from;           // the name of the layer whose output it also reads; empty: none
  bool concatenates = false;  // that output to its input
  // Returns the shape of a sample after the layer; any shape if the layer will refuse the input.
  std::function<Shape(const Shape&)> output_of = [](const Shape& input) { return input; };

  Shape OutputOf(Shape shape) const {  // after all repetitions
    for (int64_t i = 0; i < repeat; ++i) shape = output_of(shape);
    return shape;
  }
};

// A layer's entry in a model file, for the parser of its type. Errors of the reader name the key.
struct LayerEntry {
  const nlohmann::json& json;
  base::ObjectReader& reader;         // of `json`
  int64_t classes = 1;                // of the data
  const nlohmann::json& list;         // of layers, that `json` is in
  size_t index = 0;                   // of `json` there
  const LoraOptions* lora = nullptr;  // null: the model has no adapters
  // How weights of linear layers are stored; nothing: as other parameters.
  std::optional<kernels::Quantization> quantization = {};
  // Parses the layers in the array at `key`, which are inside this one: their factories, number
  // and output.
  std::function<absl::Status(const char* key, ParsedLayer& layer)> parse_inside;
  // Does so for each of the arrays in the array at `key`, of which there is at least one.
  std::function<absl::Status(const char* key, std::vector<ParsedLayer>& lists)> parse_lists_inside;
  // Parses an array of layers that the file does not have.
  std::function<absl::Status(const nlohmann::json& list, ParsedLayer& layer)> parse_list;
};

// Returns a number, or the data's classes where the word "classes" stands for them.
absl::StatusOr<int64_t> ParseFileCount(const char* key, const LayerEntry& entry);
// Returns the name of a layer, which is not empty.
absl::StatusOr<std::string> ParseName(const char* key, base::ObjectReader& reader);
// Reads the key "epsilon" of a normalization.
absl::StatusOr<float> ParseNormEpsilon(base::ObjectReader& reader);
// Reads a key, if it is there, that is the standard deviation of initial parameters.
absl::Status ParseDeviation(const char* key, base::ObjectReader& reader, float& deviation);
// Returns the index of `name`, which the reader found at `key`, among those that are known.
absl::StatusOr<size_t> ChooseAmong(absl::Span<const std::string> known, absl::string_view key,
                                   const std::string& name, const base::ObjectReader& reader);

// Return a sample's shape with another last axis, and the size of the last axis, 1 if there is
// none.
Shape WithLastAxis(const Shape& input, int64_t features);
int64_t LastAxisOf(const Shape& shape);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARSING_PARSED_LAYER_H_
