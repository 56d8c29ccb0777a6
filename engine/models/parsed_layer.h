#ifndef STAGECOACH_ENGINE_MODELS_PARSED_LAYER_H_
#define STAGECOACH_ENGINE_MODELS_PARSED_LAYER_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/json.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// A layer that a model file describes (model_file.h).
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

// Return a sample's shape with another last axis, and the size of the last axis, 1 if there is
// none.
Shape WithLastAxis(const Shape& input, int64_t features);
int64_t LastAxisOf(const Shape& shape);

// Parses the name of a layer, which is not empty.
absl::StatusOr<std::string> ParseName(const char* key, base::ObjectReader& reader);

// Parse the layer types that need nothing but their own keys. Errors name the key.
absl::Status ParseAttention(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseDropout(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseSwiGlu(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseLayerNorm(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseRmsNorm(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseConv2d(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseMaxPool(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseAvgPool(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseGlobalAvgPool(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseGroupNorm(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseBatchNorm(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseFlatten(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseAddSkip(base::ObjectReader& reader, ParsedLayer& layer);
absl::Status ParseConcatSkip(base::ObjectReader& reader, ParsedLayer& layer);

// Parses "input" of a model file: the shape of a sample, which has as many elements as `data`; or,
// for "image", `data` itself if it has channels, and otherwise that of a square image of one
// channel or three.
absl::StatusOr<Shape> ParseInput(const nlohmann::json& document, base::ObjectReader& reader,
                                 const Shape& data);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_PARSED_LAYER_H_
