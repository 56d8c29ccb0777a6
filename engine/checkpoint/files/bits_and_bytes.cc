#include "engine/checkpoint/files/bits_and_bytes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::QuantizedLayout;
using kernels::QuantizedMatrix;

constexpr char kWeight[] = "weight";
// Behind the name of a matrix, in NF4.
constexpr char kState[] = ".quant_state.bitsandbytes__nf4";
constexpr char kScales[] = ".absmax";
constexpr char kNested[] = ".nested_absmax";
constexpr char kLevels[] = ".quant_map";
constexpr char kNestedLevels[] = ".nested_quant_map";
// In place of "weight", in int8.
constexpr char kOutputScales[] = "SCB";
constexpr char kCodeOrder[] = "weight_format";
constexpr int64_t kMaxStateBytes = 100'000;
constexpr int64_t kStateBytes = 256;  // that are written, with spaces at the end

// PyTorch computes levels whose last bit depends on the processor.
bool IsClose(float a, float b) { return std::fabs(a - b) <= 1e-6F * std::fabs(b); }

// Returns the name of a tensor of a matrix in int8.
std::string Beside(absl::string_view matrix, absl::string_view name) {
  return absl::StrCat(absl::StripSuffix(matrix, kWeight), name);
}

}  // namespace

std::string BitsAndBytesMatrix::MatrixOf(absl::string_view tensor) {
  for (const char* const suffix : {kState, kScales, kNested, kLevels, kNestedLevels}) {
    if (absl::ConsumeSuffix(&tensor, suffix)) return std::string(tensor);
  }
  for (const char* const name : {kOutputScales, kCodeOrder}) {
    if (absl::ConsumeSuffix(&tensor, name)) return absl::StrCat(tensor, kWeight);
  }
  return "";
}

bool BitsAndBytesMatrix::IsOne(const TensorFinder& find, absl::string_view name) {
  return find(absl::StrCat(name, kState)).file != nullptr ||
         find(Beside(name, kOutputScales)).file != nullptr;
}

template <typename T>
absl::StatusOr<std::vector<T>> BitsAndBytesMatrix::ReadTensor(const std::string& name, DType type,
                                                              int64_t elements) const {
  const TensorInFile tensor = find_(name);
  const auto refuse = [&](const auto&... what) {
    return base::DataError(absl::StrCat("the tensor \"", name, "\" ", what...));
  };
  if (tensor.file == nullptr) return refuse("is missing");
  const SafetensorsEntry& entry = tensor.entry;
  if (entry.type != type) return refuse("has values of another type than bitsandbytes'");
  if (entry.shape.elements() != elements) {
    return refuse("has ", entry.shape.elements(), " values, expected ", elements);
  }
  std::vector<T> values(static_cast<size_t>(elements));
  RETURN_IF_ERROR(
      tensor.file->ReadAt(entry.begin, absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                                                      static_cast<size_t>(entry.bytes()))));
  return values;
}

absl::Status BitsAndBytesMatrix::ReadState() {
  const std::string name = absl::StrCat(name_, kState);
  const int64_t bytes = find_(name).entry.bytes();
  if (bytes > kMaxStateBytes) {
    return base::DataError(absl::StrCat("the tensor \"", name, "\" is too long"));
  }
  ASSIGN_OR_RETURN(const std::vector<char> text, ReadTensor<char>(name, DType::kUint8, bytes));
  const absl::Status parsed = ParseState(absl::string_view(text.data(), text.size()));
  if (parsed.ok()) return parsed;
  return base::DataError(absl::StrCat("the tensor \"", name, "\": ", parsed.message()));
}

absl::Status BitsAndBytesMatrix::ParseState(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(text));
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(document));
  const auto expect = [&](const char* key, int64_t only) -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t value, reader.RequiredInt64(key));
    if (value == only) return absl::OkStatus();
    return reader.Error(key, absl::StrCat("is ", value, ", expected ", only));
  };
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("quant_type"));
  if (type != "nf4") return reader.Error("quant_type", "is not \"nf4\"");
  RETURN_IF_ERROR(expect("blocksize", kernels::kNf4Block));
  RETURN_IF_ERROR(reader.RequiredArray("shape").status());
  const nlohmann::json& shape = document["shape"];
  if (shape != nlohmann::json{outputs_, inputs_}) {
    return reader.Error("shape", absl::StrCat("is ", shape.dump(), ", and the model's ",
                                              kernels::Shape({outputs_, inputs_}).ToString()));
  }
  kind_ = kernels::Quantization::kNf4Single;
  if (!reader.Has("nested_blocksize")) return absl::OkStatus();
  kind_ = kernels::Quantization::kNf4;
  RETURN_IF_ERROR(expect("nested_blocksize", kernels::kNf4NestedBlock));
  ASSIGN_OR_RETURN(const double offset, reader.RequiredDouble("nested_offset"));
  offset_ = static_cast<float>(offset);
  return absl::OkStatus();
}

absl::Status BitsAndBytesMatrix::CheckLevels() const {
  const auto check = [&](const char* suffix, absl::Span<const float> expected) -> absl::Status {
    const std::string name = absl::StrCat(name_, suffix);
    ASSIGN_OR_RETURN(const std::vector<float> levels,
                     ReadTensor<float>(name, DType::kFloat32, std::ssize(expected)));
    if (absl::c_equal(levels, expected, IsClose)) return absl::OkStatus();
    return base::DataError(
        absl::StrCat("the tensor \"", name, "\" has other levels than bitsandbytes'"));
  };
  RETURN_IF_ERROR(check(kLevels, kernels::kNf4Levels));
  if (kind_ != kernels::Quantization::kNf4) return absl::OkStatus();
  return check(kNestedLevels, kernels::Nf4ScaleLevels());
}

absl::Status BitsAndBytesMatrix::CheckFormat() const {
  const std::string name = Beside(name_, kCodeOrder);
  const auto refuse = [&](const auto&... what) {
    return base::DataError(absl::StrCat("the tensor \"", name_, "\" ", what...));
  };
  const TensorInFile codes = find_(name_);
  if (codes.entry.shape != kernels::Shape({outputs_, inputs_})) {
    return refuse("has the shape ", codes.entry.shape.ToString(), ", and the model's ",
                  kernels::Shape({outputs_, inputs_}).ToString());
  }
  if (find_(name).file == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<uint8_t> format, ReadTensor<uint8_t>(name, DType::kUint8, 1));
  if (format.front() == 0) return absl::OkStatus();
  return refuse("is not stored row after row");
}

absl::StatusOr<BitsAndBytesMatrix> BitsAndBytesMatrix::Open(const TensorFinder& find,
                                                            absl::string_view name, int64_t inputs,
                                                            int64_t outputs) {
  BitsAndBytesMatrix matrix(find);
  matrix.name_ = std::string(name);
  matrix.inputs_ = inputs;
  matrix.outputs_ = outputs;
  if (find(Beside(name, kOutputScales)).file != nullptr) {
    matrix.kind_ = kernels::Quantization::kInt8;
    RETURN_IF_ERROR(matrix.CheckFormat());
    return matrix;
  }
  RETURN_IF_ERROR(matrix.ReadState());
  RETURN_IF_ERROR(matrix.CheckLevels());
  return matrix;
}

absl::StatusOr<kernels::BitsAndBytesPart> BitsAndBytesMatrix::Read() const {
  const bool is_int8 = kind_ == kernels::Quantization::kInt8;
  const QuantizedLayout::Part part =
      QuantizedLayout({.kind = kind_, .inputs = inputs_, .outputs = outputs_}).parts.front();
  const int64_t elements = inputs_ * outputs_;
  kernels::BitsAndBytesPart read = {.offset = offset_};
  ASSIGN_OR_RETURN(read.codes, ReadTensor<uint8_t>(name_, is_int8 ? DType::kInt8 : DType::kUint8,
                                                   is_int8 ? elements : (elements + 1) / 2));
  const std::string scales = absl::StrCat(name_, kScales);
  if (is_int8) {
    ASSIGN_OR_RETURN(read.float_absmax,
                     ReadTensor<float>(Beside(name_, kOutputScales), DType::kFloat32, outputs_));
  } else if (kind_ == kernels::Quantization::kNf4Single) {
    ASSIGN_OR_RETURN(read.float_absmax, ReadTensor<float>(scales, DType::kFloat32, part.blocks));
  } else {
    ASSIGN_OR_RETURN(read.absmax, ReadTensor<uint8_t>(scales, DType::kUint8, part.blocks));
    ASSIGN_OR_RETURN(read.nested_absmax,
                     ReadTensor<float>(absl::StrCat(name_, kNested), DType::kFloat32, part.nested));
  }
  for (const std::vector<float>* const numbers : {&read.float_absmax, &read.nested_absmax}) {
    if (absl::c_all_of(*numbers, [](float scale) { return std::isfinite(scale); })) continue;
    return base::DataError(
        absl::StrCat("the tensor \"", name_, "\" has a scale that is not finite"));
  }
  return read;
}

std::vector<SafetensorsEntry> BitsAndBytesWriter::entries() const {
  const QuantizedLayout::Part part = QuantizedLayout(matrix_).parts.front();
  const int64_t elements = matrix_.inputs * matrix_.outputs;
  const auto entry = [](std::string name, DType type, const kernels::Shape& shape) {
    return SafetensorsEntry{.name = std::move(name), .type = type, .shape = shape};
  };
  if (matrix_.kind == kernels::Quantization::kInt8) {
    return {entry(name_, DType::kInt8, {matrix_.outputs, matrix_.inputs}),
            entry(Beside(name_, kOutputScales), DType::kFloat32, {matrix_.outputs}),
            entry(Beside(name_, kCodeOrder), DType::kUint8, {})};
  }
  const auto named = [&](const char* suffix) { return absl::StrCat(name_, suffix); };
  const bool is_double = matrix_.kind == kernels::Quantization::kNf4;
  std::vector<SafetensorsEntry> all = {
      entry(name_, DType::kUint8, {(elements + 1) / 2, 1}),
      entry(named(kScales), is_double ? DType::kUint8 : DType::kFloat32, {part.blocks}),
      entry(named(kLevels), DType::kFloat32, {std::ssize(kernels::kNf4Levels)}),
      entry(named(kState), DType::kUint8, {kStateBytes})};
  if (is_double) {
    all.push_back(entry(named(kNested), DType::kFloat32, {part.nested}));
    all.push_back(
        entry(named(kNestedLevels), DType::kFloat32, {std::ssize(kernels::Nf4ScaleLevels())}));
  }
  return all;
}

std::string BitsAndBytesWriter::State(float offset) const {
  nlohmann::ordered_json state = {{"quant_type", "nf4"},
                                  {"blocksize", kernels::kNf4Block},
                                  {"dtype", "float32"},
                                  {"shape", {matrix_.outputs, matrix_.inputs}}};
  if (matrix_.kind == kernels::Quantization::kNf4) {
    state["nested_blocksize"] = kernels::kNf4NestedBlock;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = double{offset};
  }
  std::string text = state.dump();
  text.resize(kStateBytes, ' ');
  return text;
}

absl::Status BitsAndBytesWriter::Append(absl::Span<const float> values,
                                        const base::AppendFunction& append) const {
  std::vector<std::byte> stored(static_cast<size_t>(matrix_.bytes()));
  Quantize(matrix_, values, absl::MakeSpan(stored));
  const kernels::BitsAndBytesPart part = LoadPart(matrix_, 0, stored);
  const auto append_all = [&](const auto& numbers) {
    return append(
        {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(*numbers.data())});
  };
  RETURN_IF_ERROR(append_all(part.codes));
  if (matrix_.kind == kernels::Quantization::kInt8) {
    RETURN_IF_ERROR(append_all(part.float_absmax));
    return append(absl::string_view("\0", 1));
  }
  const bool is_double = matrix_.kind == kernels::Quantization::kNf4;
  RETURN_IF_ERROR(is_double ? append_all(part.absmax) : append_all(part.float_absmax));
  RETURN_IF_ERROR(append_all(kernels::kNf4Levels));
  RETURN_IF_ERROR(append_all(State(part.offset)));
  if (!is_double) return absl::OkStatus();
  RETURN_IF_ERROR(append_all(part.nested_absmax));
  return append_all(kernels::Nf4ScaleLevels());
}

absl::Status BitsAndBytesMatrix::ReadValues(absl::Span<const int64_t> order,
                                            const kernels::Tensor& values, int64_t stride) const {
  ASSIGN_OR_RETURN(const kernels::BitsAndBytesPart part, Read());
  const QuantizedMatrix matrix = {.kind = kind_, .inputs = inputs_, .outputs = outputs_};
  std::vector<std::byte> stored(static_cast<size_t>(matrix.bytes()));
  StorePart(matrix, 0, part, absl::MakeSpan(stored));
  std::vector<float> floats(static_cast<size_t>(inputs_ * outputs_));
  Dequantize(matrix, stored, absl::MakeSpan(floats));
  for (int64_t i = 0; i < inputs_; ++i) {
    for (int64_t o = 0; o < outputs_; ++o) {
      const float value = floats[static_cast<size_t>(i * outputs_ + o)];
      const int64_t at = i * stride + (order.empty() ? o : order[static_cast<size_t>(o)]);
      if (values.dtype == DType::kFloat32) {
        values.f32()[at] = value;
      } else {
        values.bf16()[at] = kernels::ToBfloat16(value);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
