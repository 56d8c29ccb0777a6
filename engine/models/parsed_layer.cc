#include "engine/models/parsed_layer.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "engine/models/model_file.h"
#include "engine/nn/layers/attention.h"
#include "engine/nn/layers/conv2d.h"
#include "engine/nn/layers/dropout.h"
#include "engine/nn/layers/flatten.h"
#include "engine/nn/layers/image_norm.h"
#include "engine/nn/layers/last_axis.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/pooling.h"
#include "engine/nn/layers/skip.h"
#include "engine/nn/layers/swiglu.h"
#include "kernels/ops/convolution.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

constexpr base::Int64Range kCounts = {.min = 1, .max = kMaxFileOutputs};
constexpr base::Int64Range kPaddings = {.min = 0, .max = kMaxFileOutputs};

// Returns the shape of an image after a window of that size.
Shape BehindWindow(const Shape& input, int64_t channels, int64_t kernel, int64_t stride,
                   int64_t padding) {
  if (input.rank() != 3) return input;
  return Shape{channels, kernels::WindowsAlong(input.dim(1), kernel, stride, padding),
               kernels::WindowsAlong(input.dim(2), kernel, stride, padding)};
}

absl::Status ParsePool(LayerFactory (*pool)(const PoolOptions&), ObjectReader& reader,
                       ParsedLayer& layer) {
  PoolOptions options;
  ASSIGN_OR_RETURN(options.kernel, reader.OptionalInt64("kernel", options.kernel, kCounts));
  ASSIGN_OR_RETURN(options.stride, reader.OptionalInt64("stride", options.kernel, kCounts));
  ASSIGN_OR_RETURN(options.padding, reader.OptionalInt64("padding", options.padding, kPaddings));
  layer.factories = {pool(options)};
  layer.output_of = [options](const Shape& input) {
    const int64_t channels = input.rank() == 3 ? input.dim(0) : 0;
    return BehindWindow(input, channels, options.kernel, options.stride, options.padding);
  };
  return absl::OkStatus();
}

absl::StatusOr<float> ParseNormEpsilon(ObjectReader& reader) {
  ASSIGN_OR_RETURN(const double epsilon,
                   reader.OptionalDouble("epsilon", 1e-5, {.min = 1e-12, .max = 1.0}));
  return static_cast<float>(epsilon);
}

absl::Status ParseNorm(LayerFactory (*norm)(float), ObjectReader& reader, ParsedLayer& layer) {
  ASSIGN_OR_RETURN(const float epsilon, ParseNormEpsilon(reader));
  layer.factories = {norm(epsilon)};
  return absl::OkStatus();
}

absl::StatusOr<kernels::RotaryScaling> ParseRotaryScaling(ObjectReader reader) {
  kernels::RotaryScaling scaling;
  ASSIGN_OR_RETURN(scaling.factor, reader.RequiredDouble("factor", {.min = 1.0, .max = 1e6}));
  ASSIGN_OR_RETURN(scaling.original_positions,
                   reader.OptionalInt64("original_context", 0, kCounts));
  ASSIGN_OR_RETURN(scaling.low_turns, reader.OptionalDouble("low_turns", scaling.low_turns));
  ASSIGN_OR_RETURN(scaling.high_turns, reader.OptionalDouble("high_turns", scaling.high_turns));
  RETURN_IF_ERROR(reader.Finish());
  if (IsRotaryScaling(scaling)) return scaling;
  return reader.Error("low_turns", "expected a positive number below high_turns");
}

int64_t RootOf(int64_t square) {
  const auto root = static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(square))));
  return root * root == square ? root : 0;
}

}  // namespace

Shape WithLastAxis(const Shape& input, int64_t features) {
  return input.rank() == 0 ? Shape{features} : LastAxis{.sample = input}.WithFeatures(features);
}

int64_t LastAxisOf(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape.dim(shape.rank() - 1);
}

absl::StatusOr<std::string> ParseName(const char* key, ObjectReader& reader) {
  ASSIGN_OR_RETURN(std::string name, reader.RequiredString(key));
  if (name.empty()) return reader.Error(key, "expected the name of a layer, found \"\"");
  return name;
}

absl::Status ParseSwiGlu(ObjectReader&, ParsedLayer& layer) {
  layer.factories = {SwiGlu()};
  layer.output_of = [](const Shape& input) { return WithLastAxis(input, LastAxisOf(input) / 2); };
  return absl::OkStatus();
}

absl::Status ParseLayerNorm(ObjectReader& reader, ParsedLayer& layer) {
  return ParseNorm(LayerNorm, reader, layer);
}

absl::Status ParseRmsNorm(ObjectReader& reader, ParsedLayer& layer) {
  return ParseNorm(RmsNorm, reader, layer);
}

absl::Status ParseAttention(ObjectReader& reader, ParsedLayer& layer) {
  AttentionOptions options;
  ASSIGN_OR_RETURN(options.heads,
                   reader.RequiredInt64("heads", {.min = 1, .max = kMaxFileOutputs}));
  ASSIGN_OR_RETURN(options.kv_heads, reader.OptionalInt64("kv_heads", options.heads,
                                                          {.min = 1, .max = kMaxFileOutputs}));
  ASSIGN_OR_RETURN(const double base,
                   reader.OptionalDouble("rotary_base", 0.0, {.min = 0.0, .max = 1e12}));
  if (base > 0.0 && base < 1.0) {
    return reader.Error("rotary_base", "expected at least 1, or 0 for no rotary embedding");
  }
  options.rotary_base = static_cast<float>(base);
  if (reader.Has("rotary_scaling")) {
    ASSIGN_OR_RETURN(ObjectReader scaling, reader.RequiredObject("rotary_scaling"));
    ASSIGN_OR_RETURN(options.rotary_scaling, ParseRotaryScaling(std::move(scaling)));
  }
  layer.factories = {Attention(options)};
  layer.output_of = [options](const Shape& input) {
    const int64_t heads = LastAxisOf(input) / (options.heads + 2 * options.kv_heads);
    return WithLastAxis(input, heads * options.heads);
  };
  return absl::OkStatus();
}

absl::Status ParseDropout(ObjectReader& reader, ParsedLayer& layer) {
  constexpr double kMaxRate = 0.999;
  ASSIGN_OR_RETURN(const double rate, reader.RequiredDouble("rate", {.min = 0.0, .max = kMaxRate}));
  layer.factories = {Dropout(static_cast<float>(rate))};
  return absl::OkStatus();
}

absl::Status ParseConv2d(ObjectReader& reader, ParsedLayer& layer) {
  Conv2dOptions options;
  ASSIGN_OR_RETURN(options.outputs, reader.RequiredInt64("outputs", kCounts));
  ASSIGN_OR_RETURN(options.kernel, reader.RequiredInt64("kernel", kCounts));
  ASSIGN_OR_RETURN(options.stride, reader.OptionalInt64("stride", options.stride, kCounts));
  ASSIGN_OR_RETURN(options.padding, reader.OptionalInt64("padding", options.padding, kPaddings));
  ASSIGN_OR_RETURN(options.groups, reader.OptionalInt64("groups", options.groups, kCounts));
  ASSIGN_OR_RETURN(options.has_bias, reader.OptionalBool("bias", options.has_bias));
  layer.factories = {Conv2d(options)};
  layer.output_of = [options](const Shape& input) {
    return BehindWindow(input, options.outputs, options.kernel, options.stride, options.padding);
  };
  return absl::OkStatus();
}

absl::Status ParseMaxPool(ObjectReader& reader, ParsedLayer& layer) {
  return ParsePool(MaxPool, reader, layer);
}

absl::Status ParseAvgPool(ObjectReader& reader, ParsedLayer& layer) {
  return ParsePool(AvgPool, reader, layer);
}

absl::Status ParseGlobalAvgPool(ObjectReader&, ParsedLayer& layer) {
  layer.factories = {GlobalAvgPool()};
  layer.output_of = [](const Shape& input) {
    return input.rank() == 3 ? Shape{input.dim(0)} : input;
  };
  return absl::OkStatus();
}

absl::Status ParseGroupNorm(ObjectReader& reader, ParsedLayer& layer) {
  ASSIGN_OR_RETURN(const int64_t groups, reader.RequiredInt64("groups", kCounts));
  ASSIGN_OR_RETURN(const float epsilon, ParseNormEpsilon(reader));
  layer.factories = {GroupNorm(groups, epsilon)};
  return absl::OkStatus();
}

absl::Status ParseBatchNorm(ObjectReader& reader, ParsedLayer& layer) {
  BatchNormOptions options;
  ASSIGN_OR_RETURN(const double momentum,
                   reader.OptionalDouble("momentum", 0.1, {.min = 1e-6, .max = 1.0}));
  options.momentum = static_cast<float>(momentum);
  ASSIGN_OR_RETURN(options.epsilon, ParseNormEpsilon(reader));
  layer.factories = {BatchNorm(options)};
  return absl::OkStatus();
}

absl::Status ParseFlatten(ObjectReader&, ParsedLayer& layer) {
  layer.factories = {Flatten()};
  layer.output_of = [](const Shape& input) {
    // Above this, no layer takes it.
    constexpr double kMost = 1e15;
    double elements = 1.0;
    for (int i = 0; i < input.rank(); ++i) elements *= static_cast<double>(input.dim(i));
    return elements < kMost ? Shape{input.elements()} : input;
  };
  return absl::OkStatus();
}

absl::Status ParseAddSkip(ObjectReader& reader, ParsedLayer& layer) {
  ASSIGN_OR_RETURN(layer.from, ParseName("from", reader));
  layer.factories = {AddSkip()};
  return absl::OkStatus();
}

absl::Status ParseConcatSkip(ObjectReader& reader, ParsedLayer& layer) {
  ASSIGN_OR_RETURN(layer.from, ParseName("from", reader));
  layer.factories = {ConcatSkip()};
  layer.concatenates = true;
  return absl::OkStatus();
}

absl::StatusOr<Shape> ParseInput(const nlohmann::json& document, ObjectReader& reader,
                                 const Shape& data) {
  const int64_t numbers = data.elements();
  if (document["input"].is_string()) {
    ASSIGN_OR_RETURN(const std::string word, reader.RequiredString("input"));
    if (word != "image") return reader.Error("input", "expected a shape or \"image\"");
    if (data.rank() == 3) return data;
    for (const int64_t channels : {1, 3}) {
      const int64_t side = numbers % channels == 0 ? RootOf(numbers / channels) : 0;
      if (side > 0) return Shape{channels, side, side};
    }
    return reader.Error(
        "input", absl::StrCat("the data has samples of ", numbers,
                              " numbers, which are no square image of 1 or 3 channels: say their "
                              "shape, such as [3, 32, 48]"));
  }
  ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray("input"));
  if (entries.size() < 1 || entries.size() >= Shape::kMaxRank) {
    return reader.Error("input", absl::StrCat("expected 1 to ", Shape::kMaxRank - 1, " extents"));
  }
  std::vector<int64_t> extents;
  int64_t rest = numbers;
  for (size_t i = 0; i < entries.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t extent, entries.Int64(i, {.min = 1, .max = numbers}));
    extents.push_back(extent);
    rest = rest % extent == 0 ? rest / extent : 0;
    if (rest == 0) break;
  }
  if (rest != 1) {
    return reader.Error("input", absl::StrCat("has not as many elements as the samples of the "
                                              "data, which have ",
                                              numbers, " numbers"));
  }
  return Shape(extents);
}

}  // namespace stagecoach::engine
