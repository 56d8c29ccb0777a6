#include "engine/session/predict/prediction_file.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error_class.h"

namespace stagecoach::engine {
namespace {

static_assert(std::endian::native == std::endian::little, ".npy files are written as numbers lie");

void AppendNumber(float value, std::string& to) {
  char text[32];
  to.append(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

// As RFC 4180 has it.
void AppendField(const std::string& text, std::string& to) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    to += text;
  } else {
    absl::StrAppend(&to, "\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
  }
}

// Names of files may be no UTF-8.
std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Csv final : public PredictionFormat {
 public:
  using PredictionFormat::PredictionFormat;

  void AppendHeader(std::string& to) const override {
    to += layout_.has_names ? "row,file" : "row";
    for (int64_t i = 0; has_outputs() && i < layout_.outputs; ++i) {
      to += ',';
      AppendField(NameOfOutput(static_cast<size_t>(i)), to);
    }
    if (!has_outputs()) to += layout_.has_labels ? ",class,label" : ",class";
    to += '\n';
  }

  void AppendRow(const PredictedRow& row, std::string& to) const override {
    absl::StrAppend(&to, row.row);
    if (layout_.has_names) {
      to += ',';
      AppendField(row.name, to);
    }
    for (size_t i = 0; has_outputs() && i < row.outputs.size(); ++i) {
      to += ',';
      AppendNumber(row.outputs[i], to);
    }
    if (!has_outputs()) {
      to += ',';
      AppendField(layout_.encoding.NameOf(row.predicted), to);
      if (layout_.has_labels) {
        to += ',';
        AppendField(layout_.encoding.NameOf(row.label), to);
      }
    }
    to += '\n';
  }

 private:
  std::string NameOfOutput(size_t i) const {
    const DataEncoding& encoding = layout_.encoding;
    if (!encoding.labels_are_numbers()) return encoding.NameOf(static_cast<int64_t>(i));
    return i < encoding.label_names.size() ? encoding.label_names[i] : "prediction";
  }
};

class JsonLines final : public PredictionFormat {
 public:
  using PredictionFormat::PredictionFormat;

  void AppendHeader(std::string& /*to*/) const override {}

  void AppendRow(const PredictedRow& row, std::string& to) const override {
    absl::StrAppend(&to, "{\"row\":", row.row);
    if (layout_.has_names) absl::StrAppend(&to, ",\"file\":", JsonText(row.name));
    if (has_outputs()) {
      const char* separator = ",\"outputs\":[";
      for (const float output : row.outputs) {
        to += separator;
        if (std::isfinite(output)) {
          AppendNumber(output, to);
        } else {
          to += "null";
        }
        separator = ",";
      }
      to += "]}\n";
      return;
    }
    const auto add = [&](const char* key, int32_t label) {
      absl::StrAppend(&to, ",\"", key, "\":", JsonText(layout_.encoding.NameOf(label)));
    };
    add("class", row.predicted);
    if (layout_.has_labels) add("label", row.label);
    to += "}\n";
  }
};

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0.
class Npy final : public PredictionFormat {
 public:
  using PredictionFormat::PredictionFormat;

  void AppendHeader(std::string& to) const override {
    constexpr size_t kAlignment = 64, kBefore = 10;
    std::string header = absl::StrCat(
        "{'descr': '", has_outputs() ? "<f4" : "<i4", "', 'fortran_order': False, 'shape': (",
        layout_.rows, ",", has_outputs() ? absl::StrCat(" ", layout_.outputs) : "", "), }");
    // A newline ends it where the numbers are aligned.
    header.append(kAlignment - 1 - (kBefore + header.size()) % kAlignment, ' ');
    header += '\n';
    to.append("\x93NUMPY\x01\x00", 8);
    to += static_cast<char>(header.size() & 0xFF);
    to += static_cast<char>(header.size() >> 8);
    to += header;
  }

  void AppendRow(const PredictedRow& row, std::string& to) const override {
    if (has_outputs()) {
      to.append(reinterpret_cast<const char*>(row.outputs.data()),
                row.outputs.size() * sizeof(float));
    } else {
      to.append(reinterpret_cast<const char*>(&row.predicted), sizeof(row.predicted));
    }
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<PredictionFormat>> PredictionFormat::Create(
    const std::string& path, const PredictionLayout& layout) {
  std::unique_ptr<PredictionFormat> format;
  if (absl::EndsWith(path, ".csv")) format = std::make_unique<Csv>(layout);
  if (absl::EndsWith(path, ".jsonl")) format = std::make_unique<JsonLines>(layout);
  if (absl::EndsWith(path, ".npy")) format = std::make_unique<Npy>(layout);
  if (format != nullptr) return format;
  return base::UsageError(
      absl::StrCat("\"", path, "\": expected a name that ends in .csv, .jsonl or .npy"));
}

}  // namespace stagecoach::engine
