#include "engine/checkpoint/files/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/system_calls.h"
#include "base/text/json.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignment = 64;
constexpr char kMetadata[] = "__metadata__";

constexpr std::pair<const char*, std::optional<DType>> kTypes[] = {
    {"F32", DType::kFloat32},   {"F64", DType::kFloat64}, {"I32", DType::kInt32},
    {"BF16", DType::kBfloat16}, {"F16", DType::kFloat16}, {"U8", DType::kUint8},
    {"I8", DType::kInt8},       {"I64", std::nullopt}};

const char* NameOf(std::optional<DType> type) {
  for (const auto& [name, named] : kTypes) {
    if (named == type) return name;
  }
  STAGECOACH_CHECK(false, "a type without a name");
}

std::string LengthText(int64_t length) {
  std::string text;
  for (int64_t byte = 0; byte < kLengthBytes; ++byte) {
    text.push_back(static_cast<char>(static_cast<uint64_t>(length) >> (8 * byte) & 0xFF));
  }
  return text;
}

uint64_t LengthOf(absl::string_view text) {
  uint64_t length = 0;
  for (int64_t byte = kLengthBytes; byte-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(text[static_cast<size_t>(byte)]);
  }
  return length;
}

absl::StatusOr<std::optional<DType>> ParseType(const base::ObjectReader& reader,
                                               const std::string& text) {
  for (const auto& [name, type] : kTypes) {
    if (text == name) return type;
  }
  return reader.Error(
      "dtype", absl::StrCat("is ", text, ", expected F32, F64, I32, I64, BF16, F16, U8 or I8"));
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, base::ObjectReader reader,
                                            int64_t data_begin, int64_t data_bytes) {
  SafetensorsEntry entry{.name = name};
  ASSIGN_OR_RETURN(const std::string type, reader.RequiredString("dtype"));
  ASSIGN_OR_RETURN(entry.type, ParseType(reader, type));
  ASSIGN_OR_RETURN(const base::ArrayReader dims, reader.RequiredArray("shape"));
  ASSIGN_OR_RETURN(entry.shape, ParseShape(dims, entry.element_bytes()));
  ASSIGN_OR_RETURN(const base::ArrayReader offsets, reader.RequiredArray("data_offsets"));
  if (offsets.size() != 2) return reader.Error("data_offsets", "expected two numbers");
  ASSIGN_OR_RETURN(const int64_t begin, offsets.Int64(0, {.min = 0, .max = data_bytes}));
  ASSIGN_OR_RETURN(const int64_t end, offsets.Int64(1, {.min = begin, .max = data_bytes}));
  if (end - begin != entry.bytes()) {
    return reader.Error(
        "data_offsets",
        absl::StrCat("are ", end - begin, " bytes apart; the shape takes ", entry.bytes()));
  }
  RETURN_IF_ERROR(reader.Finish());
  entry.begin = data_begin + begin;
  return entry;
}

absl::Status CheckNoGaps(const SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes) {
  int64_t end = data_begin;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != end) {
      return base::DataError(absl::StrCat("tensor \"", entry.name, "\" begins at byte ",
                                          entry.begin, ", expected ", end));
    }
    end += entry.bytes();
  }
  if (end == file_bytes) return absl::OkStatus();
  return base::DataError(absl::StrCat("the tensors end at byte ", end, " of ", file_bytes));
}

}  // namespace

std::string LayOutSafetensors(SafetensorsHeader& header) {
  nlohmann::ordered_json json;
  if (!header.metadata.empty()) json[kMetadata] = header.metadata;
  int64_t end = 0;
  for (SafetensorsEntry& entry : header.tensors) {
    entry.begin = end;
    end += entry.bytes();
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (int i = 0; i < entry.shape.rank(); ++i) shape.push_back(entry.shape.dim(i));
    json[entry.name] = {{"dtype", NameOf(entry.type)},
                        {"shape", std::move(shape)},
                        {"data_offsets", {entry.begin, end}}};
  }
  std::string text = json.is_null() ? "{}" : json.dump();
  const int64_t bytes = kLengthBytes + static_cast<int64_t>(text.size());
  const int64_t data_begin = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  text.append(static_cast<size_t>(data_begin - bytes), ' ');
  for (SafetensorsEntry& entry : header.tensors) entry.begin += data_begin;
  return LengthText(data_begin - kLengthBytes) + text;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensors(absl::string_view text, int64_t file_bytes) {
  if (file_bytes < kLengthBytes || static_cast<int64_t>(text.size()) < kLengthBytes) {
    return base::DataError("it is too short for a safetensors file");
  }
  const uint64_t length = LengthOf(text);
  const auto available =
      static_cast<uint64_t>(std::min(file_bytes, static_cast<int64_t>(text.size())) - kLengthBytes);
  if (length > available || length > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return base::DataError(
        absl::StrCat("its header would have ", length, " bytes, of ", available));
  }
  const absl::string_view json_text = text.substr(kLengthBytes, length);
  if (json_text.empty() || json_text.front() != '{') {
    return base::DataError("its header is not a JSON object");
  }
  ASSIGN_OR_RETURN(
      const nlohmann::json json,
      base::ParseJson(json_text, {.max_depth = 4, .max_bytes = kMaxSafetensorsHeaderBytes}));
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(json));
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  SafetensorsHeader header;
  for (const std::string& name : reader.Keys()) {
    ASSIGN_OR_RETURN(base::ObjectReader entry, reader.RequiredObject(name));
    if (name == kMetadata) {
      for (const std::string& key : entry.Keys()) {
        ASSIGN_OR_RETURN(header.metadata[key], entry.RequiredString(key));
      }
      continue;
    }
    ASSIGN_OR_RETURN(header.tensors.emplace_back(),
                     ParseEntry(name, std::move(entry), data_begin, file_bytes - data_begin));
  }
  // If several tensors are at one place, all but the last are empty.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.bytes()) < std::pair(b.begin, b.bytes());
                   });
  RETURN_IF_ERROR(CheckNoGaps(header, data_begin, file_bytes));
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const base::FileReader& file) {
  std::string text;
  const auto read_to = [&](int64_t end) {
    const auto begin = std::ssize(text);
    text.resize(static_cast<size_t>(std::clamp(end, begin, std::max(file.size(), begin))));
    return file.ReadAt(begin, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()) + begin,
                                             text.size() - static_cast<size_t>(begin)));
  };
  RETURN_IF_ERROR(read_to(kLengthBytes));
  if (std::ssize(text) == kLengthBytes) {
    const auto length =
        std::min<uint64_t>(LengthOf(text), static_cast<uint64_t>(kMaxSafetensorsHeaderBytes));
    RETURN_IF_ERROR(read_to(kLengthBytes + static_cast<int64_t>(length)));
  }
  return ParseSafetensors(text, file.size());
}

absl::StatusOr<Shape> ParseShape(const base::ArrayReader& dims, int64_t element_bytes) {
  if (dims.size() > static_cast<size_t>(Shape::kMaxRank)) {
    return dims.Error(0, absl::StrCat("there are more than ", Shape::kMaxRank, " dimensions"));
  }
  int64_t most = std::numeric_limits<int64_t>::max() / element_bytes;
  std::vector<int64_t> extents;
  for (size_t i = 0; i < dims.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t extent, dims.Int64(i, {.min = 0, .max = most}));
    most /= std::max<int64_t>(extent, 1);
    extents.push_back(extent);
  }
  return Shape(absl::MakeConstSpan(extents));
}

}  // namespace stagecoach::engine
