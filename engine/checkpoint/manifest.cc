#include "engine/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "engine/checkpoint/encoding_json.h"
#include "engine/checkpoint/files/safetensors.h"

namespace stagecoach::engine {
namespace {

using base::ArrayReader;
using base::Int64Range;
using base::ObjectReader;
using kernels::Shape;
using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "stagecoach-checkpoint";
constexpr int kVersion = 1;
// The limit allows the sum of two without overflow.
constexpr Int64Range kCount = {.min = 0, .max = std::numeric_limits<int64_t>::max() / 2};
constexpr size_t kHashDigits = 32;

// Writes numbers that JSON cannot hold as text: all 64 bits without a sign, NaN and infinity.
std::string Text(double value) { return absl::StrFormat("%.17g", value); }

absl::StatusOr<double> DoubleOfText(ObjectReader& reader, absl::string_view key) {
  ASSIGN_OR_RETURN(const std::string text, reader.RequiredString(key));
  double value = 0.0;
  if (absl::SimpleAtod(text, &value)) return value;
  return reader.Error(key, absl::StrCat("is \"", text, "\", expected a number"));
}

absl::StatusOr<float> Float(ObjectReader& reader, absl::string_view key) {
  constexpr double kMost = std::numeric_limits<float>::max();
  ASSIGN_OR_RETURN(const double value, reader.RequiredDouble(key, {.min = -kMost, .max = kMost}));
  return static_cast<float>(value);
}

Json ToJson(const Shape& shape) {
  Json json = Json::array();
  for (int i = 0; i < shape.rank(); ++i) json.push_back(shape.dim(i));
  return json;
}

Json ToJson(const DataPosition& position) {
  Json json = {{"epoch", position.epoch},
               {"rows", position.rows},
               {"loss_sum", Text(position.loss_sum)},
               {"correct", position.correct},
               {"answers", position.answers},
               {"losses_hash", position.losses_hash}};
  if (position.metrics.has_value()) {
    json["test_loss"] = Text(position.metrics->test_loss);
    json["test_accuracy"] = Text(position.metrics->test_accuracy);
    json["train_loss"] = Text(position.metrics->train_loss);
    json["train_accuracy"] = Text(position.metrics->train_accuracy);
    for (const auto& [name, value] : position.metrics->more) json["metrics"][name] = Text(value);
  }
  if (position.skipped_steps > 0) {
    json["skipped_rows"] = position.skipped_rows;
    json["skipped_steps"] = position.skipped_steps;
  }
  json["best_by"] = position.best_by;
  if (position.best.has_value()) json["best"] = Text(*position.best);
  if (position.evaluations_since_best > 0) {
    json["evaluations_since_best"] = position.evaluations_since_best;
  }
  return json;
}

absl::StatusOr<DataPosition> ParsePosition(ObjectReader reader) {
  DataPosition position;
  ASSIGN_OR_RETURN(const int64_t epoch,
                   reader.RequiredInt64("epoch", {.min = 1, .max = 1'000'000'000}));
  position.epoch = static_cast<int>(epoch);
  ASSIGN_OR_RETURN(position.rows, reader.RequiredInt64("rows", kCount));
  ASSIGN_OR_RETURN(position.loss_sum, DoubleOfText(reader, "loss_sum"));
  ASSIGN_OR_RETURN(position.correct, reader.RequiredInt64("correct", kCount));
  ASSIGN_OR_RETURN(position.answers, reader.OptionalInt64("answers", 0, kCount));
  ASSIGN_OR_RETURN(position.losses_hash, reader.RequiredString("losses_hash"));
  if (reader.Has("test_loss")) {
    Metrics& metrics = position.metrics.emplace();
    ASSIGN_OR_RETURN(metrics.test_loss, DoubleOfText(reader, "test_loss"));
    if (reader.Has("test_accuracy")) {
      ASSIGN_OR_RETURN(metrics.test_accuracy, DoubleOfText(reader, "test_accuracy"));
      ASSIGN_OR_RETURN(metrics.train_loss, DoubleOfText(reader, "train_loss"));
      ASSIGN_OR_RETURN(metrics.train_accuracy, DoubleOfText(reader, "train_accuracy"));
    }
  }
  if (reader.Has("metrics")) {
    ASSIGN_OR_RETURN(ObjectReader more, reader.RequiredObject("metrics"));
    Metrics& metrics =
        position.metrics.has_value() ? *position.metrics : position.metrics.emplace();
    for (const std::string& name : more.Keys()) {
      ASSIGN_OR_RETURN(metrics.more[name], DoubleOfText(more, name));
    }
  }
  if (reader.Has("skipped_steps")) {
    ASSIGN_OR_RETURN(position.skipped_rows, reader.RequiredInt64("skipped_rows", kCount));
    ASSIGN_OR_RETURN(position.skipped_steps, reader.RequiredInt64("skipped_steps", kCount));
  }
  if (reader.Has("best_by")) {
    ASSIGN_OR_RETURN(position.best_by, reader.RequiredString("best_by"));
  }
  if (reader.Has("best")) {
    ASSIGN_OR_RETURN(position.best, DoubleOfText(reader, "best"));
  } else if (reader.Has("best_test_loss")) {  // of older programs
    ASSIGN_OR_RETURN(position.best, DoubleOfText(reader, "best_test_loss"));
  }
  ASSIGN_OR_RETURN(position.evaluations_since_best,
                   reader.OptionalInt64("evaluations_since_best", 0, kCount));
  RETURN_IF_ERROR(reader.Finish());
  return position;
}

Json ToJson(const Optimizer& optimizer) {
  Json json = {{"name", TypeOf(optimizer).name}, {"weight_decay", optimizer.weight_decay}};
  for (const HyperParameter& parameter : HyperParameters()) {
    json[parameter.name] = optimizer.*parameter.value;
  }
  json["clip_norm"] = optimizer.clip_norm;
  if (optimizer.has_ema()) json["ema_decay"] = optimizer.ema_decay;
  return json;
}

// A file may lack the hyper-parameters of other optimizers: it may be older than those.
absl::StatusOr<Optimizer> ParseOptimizer(ObjectReader reader) {
  ASSIGN_OR_RETURN(const std::string name, reader.RequiredString("name"));
  const OptimizerType* const type = FindOptimizerType(name);
  if (type == nullptr) {
    return reader.Error("name", absl::StrCat("is \"", name, "\", expected ", ListOptimizers()));
  }
  Optimizer optimizer = type->defaults;
  ASSIGN_OR_RETURN(optimizer.weight_decay, Float(reader, "weight_decay"));
  for (const HyperParameter& parameter : HyperParameters()) {
    if (!reader.Has(parameter.name) && !type->Has(parameter)) continue;
    ASSIGN_OR_RETURN(optimizer.*parameter.value, Float(reader, parameter.name));
  }
  ASSIGN_OR_RETURN(optimizer.clip_norm, Float(reader, "clip_norm"));
  if (reader.Has("ema_decay")) {
    ASSIGN_OR_RETURN(optimizer.ema_decay, Float(reader, "ema_decay"));
  }
  RETURN_IF_ERROR(reader.Finish());
  RETURN_IF_ERROR(CheckOptimizer(optimizer));
  return optimizer;
}

// Reads a name that stays in its folder, and is not hidden.
absl::StatusOr<std::string> FileName(ObjectReader& reader, absl::string_view key) {
  ASSIGN_OR_RETURN(std::string name, reader.RequiredString(key));
  const bool is_plain = !name.empty() && name.size() <= 255 && name.front() != '.' &&
                        std::all_of(name.begin(), name.end(), [](char c) {
                          return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                                 absl::StrContains("-_.", absl::string_view(&c, 1));
                        });
  if (is_plain && absl::EndsWith(name, ".safetensors")) return name;
  return reader.Error(key, "is not the name of a file of a checkpoint");
}

absl::StatusOr<std::string> Hash(ObjectReader& reader) {
  ASSIGN_OR_RETURN(std::string hash, reader.RequiredString("hash"));
  const bool is_hash =
      hash.size() == kHashDigits && std::all_of(hash.begin(), hash.end(), [](char c) {
        return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
      });
  if (is_hash) return hash;
  return reader.Error("hash", "is not 32 hexadecimal digits");
}

// Returns the results of `read` for each element of an array of objects.
template <typename F>
auto ReadEach(const ArrayReader& array, F read) -> absl::StatusOr<
    std::vector<typename decltype(read(std::declval<ObjectReader&>()))::value_type>> {
  std::vector<typename decltype(read(std::declval<ObjectReader&>()))::value_type> values;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(ObjectReader element, array.Object(i));
    ASSIGN_OR_RETURN(values.emplace_back(), read(element));
    RETURN_IF_ERROR(element.Finish());
  }
  return values;
}

template <typename F>
auto ReadEach(ObjectReader& reader, absl::string_view key, F read)
    -> decltype(ReadEach(std::declval<const ArrayReader&>(), read)) {
  ASSIGN_OR_RETURN(const ArrayReader array, reader.RequiredArray(key));
  return ReadEach(array, read);
}

absl::StatusOr<SavedOption> ParseOption(ObjectReader& reader) {
  SavedOption option;
  ASSIGN_OR_RETURN(option.name, reader.RequiredString("name"));
  ASSIGN_OR_RETURN(option.value, reader.RequiredString("value"));
  ASSIGN_OR_RETURN(const std::string origin, reader.RequiredString("origin"));
  if (origin != "given" && origin != "default") {
    return reader.Error("origin", absl::StrCat("is \"", origin, "\", expected given or default"));
  }
  option.is_given = origin == "given";
  return option;
}

absl::StatusOr<kernels::QuantizedMatrix> ParseQuantized(const kernels::Shape& shape,
                                                        ObjectReader& reader) {
  kernels::QuantizedMatrix matrix;
  ASSIGN_OR_RETURN(const std::string name, reader.RequiredString("quantized"));
  const absl::StatusOr<kernels::Quantization> kind = kernels::ParseQuantization(name);
  if (!kind.ok()) return reader.Error("quantized", kind.status().message());
  matrix.kind = *kind;
  if (shape.rank() != 2) return reader.Error("shape", "is not that of a matrix");
  matrix.inputs = shape.dim(0);
  matrix.outputs = shape.dim(1);
  ASSIGN_OR_RETURN(const std::optional<ArrayReader> parts, reader.OptionalArray("parts"));
  for (size_t i = 0; parts.has_value() && i < parts->size(); ++i) {
    ASSIGN_OR_RETURN(matrix.parts.emplace_back(), parts->Int64(i, kCount));
  }
  constexpr int64_t kMostExtent = int64_t{1} << 31;
  const absl::Status is_matrix = CheckQuantizedMatrix(matrix, kMostExtent);
  if (!is_matrix.ok()) return reader.Error("quantized", is_matrix.message());
  return matrix;
}

absl::StatusOr<SavedFile::Tensor> ParseTensor(ObjectReader& reader) {
  SavedFile::Tensor tensor;
  ASSIGN_OR_RETURN(tensor.name, reader.RequiredString("name"));
  ASSIGN_OR_RETURN(const ArrayReader dims, reader.RequiredArray("shape"));
  ASSIGN_OR_RETURN(tensor.shape, ParseShape(dims));
  if (reader.Has("quantized")) {
    ASSIGN_OR_RETURN(tensor.quantized, ParseQuantized(tensor.shape, reader));
  }
  ASSIGN_OR_RETURN(tensor.hash, Hash(reader));
  return tensor;
}

absl::StatusOr<SavedFile> ParseFile(ObjectReader& reader) {
  SavedFile file;
  ASSIGN_OR_RETURN(file.name, FileName(reader, "name"));
  ASSIGN_OR_RETURN(file.bytes, reader.RequiredInt64("bytes", kCount));
  ASSIGN_OR_RETURN(file.hash, Hash(reader));
  ASSIGN_OR_RETURN(file.tensors, ReadEach(reader, "tensors", ParseTensor));
  int64_t left = file.bytes;  // bounds the sums of tensors
  for (const SavedFile::Tensor& tensor : file.tensors) {
    left -= tensor.stored().bytes();
    if (left < 0) return reader.Error("tensors", "take more bytes than the file has");
  }
  return file;
}

// Returns an array with a line for each element.
std::string Lines(const std::vector<Json>& elements) {
  std::string text = "[";
  const char* separator = "\n    ";
  for (const Json& element : elements) {
    absl::StrAppend(&text, separator, element.dump());
    separator = ",\n    ";
  }
  return absl::StrCat(text, elements.empty() ? "]" : "\n  ]");
}

template <typename Values, typename F>
std::string LinesOf(const Values& values, F to_json) {
  std::vector<Json> elements;
  for (const auto& value : values) elements.push_back(to_json(value));
  return Lines(elements);
}

absl::Status ParseModel(ObjectReader& reader, Manifest& manifest) {
  ASSIGN_OR_RETURN(const ArrayReader layers, reader.RequiredArray("layers"));
  for (size_t i = 0; i < layers.size(); ++i) {
    ASSIGN_OR_RETURN(manifest.layers.emplace_back(), layers.String(i));
  }
  ASSIGN_OR_RETURN(const ArrayReader input, reader.RequiredArray("input"));
  ASSIGN_OR_RETURN(manifest.input, ParseShape(input));
  ASSIGN_OR_RETURN(const ArrayReader output, reader.RequiredArray("output"));
  ASSIGN_OR_RETURN(manifest.output, ParseShape(output));
  ASSIGN_OR_RETURN(manifest.loss, reader.RequiredString("loss"));
  ASSIGN_OR_RETURN(manifest.model_source, reader.OptionalString("model_source", ""));
  ASSIGN_OR_RETURN(std::optional<ObjectReader> data, reader.OptionalObject("data"));
  if (data.has_value()) {
    ASSIGN_OR_RETURN(manifest.encoding, ParseEncoding(*std::move(data)));
  }
  ASSIGN_OR_RETURN(std::optional<ObjectReader> hashes, reader.OptionalObject("data_hashes"));
  if (hashes.has_value()) {
    ASSIGN_OR_RETURN(manifest.data.train, hashes->RequiredString("train"));
    ASSIGN_OR_RETURN(manifest.data.test, hashes->RequiredString("test"));
    RETURN_IF_ERROR(hashes->Finish());
  }
  return absl::OkStatus();
}

absl::Status ParseRun(ObjectReader& reader, const nlohmann::json& json, Manifest& manifest) {
  ASSIGN_OR_RETURN(manifest.program, reader.RequiredString("program"));
  ASSIGN_OR_RETURN(manifest.saved_at, reader.RequiredString("saved_at"));
  ASSIGN_OR_RETURN(manifest.step, reader.RequiredInt64("step", kCount));
  ASSIGN_OR_RETURN(manifest.samples, reader.RequiredInt64("samples", kCount));
  ASSIGN_OR_RETURN(ObjectReader position, reader.RequiredObject("position"));
  ASSIGN_OR_RETURN(manifest.position, ParsePosition(std::move(position)));
  ASSIGN_OR_RETURN(const std::string seed, reader.RequiredString("seed"));
  if (!absl::SimpleAtoi(seed, &manifest.seed)) {
    return reader.Error("seed", absl::StrCat("is \"", seed, "\", expected a number"));
  }
  ASSIGN_OR_RETURN(ObjectReader optimizer, reader.RequiredObject("optimizer"));
  ASSIGN_OR_RETURN(manifest.optimizer, ParseOptimizer(std::move(optimizer)));
  ASSIGN_OR_RETURN(manifest.device, reader.RequiredString("device"));
  ASSIGN_OR_RETURN(manifest.precision, reader.RequiredString("precision"));
  RETURN_IF_ERROR(reader.RequiredObject("plan").status());
  ASSIGN_OR_RETURN(manifest.plan, partition::ParsePlanJson(json.at("plan").dump()));
  return absl::OkStatus();
}

}  // namespace

const SavedFile* Manifest::FindFile(absl::string_view name) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const SavedFile& file) { return file.name == name; });
  return found == files.end() ? nullptr : &*found;
}

namespace {

// Checks that no file, and no tensor of any file, has the name of another.
absl::Status CheckNames(absl::Span<const SavedFile> files) {
  std::set<absl::string_view> names;
  for (const SavedFile& file : files) {
    bool is_new = names.insert(file.name).second;
    for (const SavedFile::Tensor& tensor : file.tensors) {
      is_new = is_new && names.insert(tensor.name).second;
    }
    if (!is_new) {
      return base::DataError(
          absl::StrCat("$.files: ", file.name, ", or a tensor in it, is there twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToJson(absl::Span<const SavedFile> files) {
  return LinesOf(files, [](const SavedFile& file) -> Json {
    Json tensors = Json::array();
    for (const SavedFile::Tensor& tensor : file.tensors) {
      Json own = {{"name", tensor.name}, {"shape", ToJson(tensor.shape)}};
      if (tensor.quantized.has_value()) {
        own["quantized"] = QuantizationName(tensor.quantized->kind);
        if (!tensor.quantized->parts.empty()) own["parts"] = tensor.quantized->parts;
      }
      own["hash"] = tensor.hash;
      tensors.push_back(std::move(own));
    }
    return {{"name", file.name},
            {"bytes", file.bytes},
            {"hash", file.hash},
            {"tensors", std::move(tensors)}};
  });
}

std::string SavedOptionOf(const Manifest& manifest, absl::string_view name) {
  for (const SavedOption& option : manifest.options) {
    if (option.name == name) return option.value;
  }
  return "";
}

std::string ToJson(const Manifest& manifest) {
  std::string text = "{";
  const char* separator = "\n  ";
  const auto add = [&](absl::string_view key, const absl::AlphaNum& value) {
    absl::StrAppend(&text, separator, "\"", key, "\": ", value);
    separator = ",\n  ";
  };
  const auto quoted = [](const std::string& value) { return Json(value).dump(); };
  add("format", quoted(kFormat));
  add("version", kVersion);
  add("program", quoted(manifest.program));
  add("saved_at", quoted(manifest.saved_at));
  add("step", manifest.step);
  add("samples", manifest.samples);
  add("position", ToJson(manifest.position).dump());
  add("seed", absl::StrCat("\"", manifest.seed, "\""));
  add("optimizer", ToJson(manifest.optimizer).dump());
  add("device", quoted(manifest.device));
  add("precision", quoted(manifest.precision));
  add("input", ToJson(manifest.input).dump());
  add("output", ToJson(manifest.output).dump());
  add("loss", quoted(manifest.loss));
  add("layers", LinesOf(manifest.layers, [](const std::string& layer) { return Json(layer); }));
  if (manifest.encoding != DataEncoding()) add("data", ToJson(manifest.encoding).dump());
  if (manifest.data != DataFingerprint()) {
    add("data_hashes", Json{{"train", manifest.data.train}, {"test", manifest.data.test}}.dump());
  }
  if (!manifest.model_source.empty()) add("model_source", quoted(manifest.model_source));
  add("plan", Json::parse(ToPlanJson(manifest.plan)).dump());
  add("options", LinesOf(manifest.options, [](const SavedOption& option) -> Json {
        return {{"name", option.name},
                {"value", option.value},
                {"origin", option.is_given ? "given" : "default"}};
      }));
  add("files", ToJson(absl::MakeConstSpan(manifest.files)));
  return absl::StrCat(text, "\n}\n");
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json));
  ASSIGN_OR_RETURN(const std::string format, reader.RequiredString("format"));
  if (format != kFormat) {
    return reader.Error("format", absl::StrCat("is \"", format, "\", expected \"", kFormat, "\""));
  }
  ASSIGN_OR_RETURN(const int64_t version, reader.RequiredInt64("version"));
  if (version != kVersion) {
    return reader.Error("version", absl::StrCat("is ", version, ", expected ", kVersion));
  }
  Manifest manifest;
  RETURN_IF_ERROR(ParseRun(reader, json, manifest));
  RETURN_IF_ERROR(ParseModel(reader, manifest));
  ASSIGN_OR_RETURN(manifest.options, ReadEach(reader, "options", ParseOption));
  ASSIGN_OR_RETURN(manifest.files, ReadEach(reader, "files", ParseFile));
  RETURN_IF_ERROR(reader.Finish());
  RETURN_IF_ERROR(CheckNames(manifest.files));
  return manifest;
}

std::string ToText(const DataPosition& position) { return ToJson(position).dump(); }

absl::StatusOr<DataPosition> ParseDataPosition(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text));
  ASSIGN_OR_RETURN(ObjectReader reader, ObjectReader::Create(json));
  return ParsePosition(std::move(reader));
}

absl::StatusOr<std::vector<SavedFile>> ParseSavedFiles(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text));
  ASSIGN_OR_RETURN(const ArrayReader array, ArrayReader::Create(json));
  return ReadEach(array, ParseFile);
}

}  // namespace stagecoach::engine
