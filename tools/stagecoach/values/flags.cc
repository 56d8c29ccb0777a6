#include "tools/stagecoach/values/flags.h"

#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/nearest.h"
#include "base/text/units.h"
#include "engine/checkpoint/peft.h"
#include "engine/data/chat/chat_template.h"
#include "engine/nn/parsing/lora.h"

namespace stagecoach::tools {
namespace {

absl::Status Unexpected(const std::string& text, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(text), "\" is not ", expected));
}

// The conversions of absl ignore spaces around a number.
bool HasSpaces(const std::string& text) {
  return absl::StripAsciiWhitespace(text).size() != text.size();
}

}  // namespace

absl::StatusOr<int64_t> ParseCount(const std::string& text, int64_t min, int64_t max) {
  int64_t value = 0;
  if (HasSpaces(text) || !absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return Unexpected(text, absl::StrCat("a whole number from ", min, " to ", max));
  }
  return value;
}

absl::StatusOr<double> ParseNumber(const std::string& text, const NumberRange& range) {
  double value = 0.0;
  const bool is_number = !HasSpaces(text) && absl::SimpleAtod(text, &value) && std::isfinite(value);
  if (!is_number || value < range.min || value > range.max ||
      (range.above_min && value == range.min)) {
    return Unexpected(
        text, absl::StrFormat("a number %s %g and at most %g",
                              range.above_min ? "above" : "of at least", range.min, range.max));
  }
  return value;
}

absl::StatusOr<std::string> ParseChoice(const std::string& name,
                                        const std::vector<std::string>& known) {
  for (const std::string& choice : known) {
    if (name == choice) return name;
  }
  const std::string nearest = base::Nearest(name, known);
  return Unexpected(
      name, absl::StrCat("one of ", absl::StrJoin(known, ", "),
                         nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::StatusOr<int64_t> ParseMemory(const std::string& text) {
  ASSIGN_OR_RETURN(const int64_t bytes, base::ParseBytes(text));
  if (bytes > 0) return bytes;
  return absl::InvalidArgumentError("expected more than 0 bytes; leave it out for no limit");
}

absl::StatusOr<double> ParseOffload(const std::string& text) {
  if (text == "none") return 0.0;
  if (text == "full") return 1.0;
  const absl::StatusOr<double> share = ParseNumber(text, {.min = 0.0, .max = 1.0});
  return share.ok() ? share : Unexpected(text, "none, full, or a number from 0 to 1");
}

absl::StatusOr<std::string> ParseFile(const std::string& path) {
  if (path == base::kStandardStream) {
    return absl::InvalidArgumentError("- stands for no file here: name one");
  }
  return ParseInput(path);
}

absl::StatusOr<std::string> ParseInput(const std::string& path) {
  if (!path.empty()) return path;
  return absl::InvalidArgumentError("expected a file");
}

absl::StatusOr<std::string> ParseOutput(const std::string& path) {
  if (path == base::kStandardStream) RETURN_IF_ERROR(base::ReserveStandardOutput());
  return ParseInput(path);
}

bool IsSameFile(const std::string& a, const std::string& b) {
  const auto full = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  return !a.empty() && !b.empty() && full(a) == full(b);
}

absl::Status CheckDistinct(absl::Span<const OutputFile> outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t earlier = 0; earlier < i; ++earlier) {
      if (!IsSameFile(outputs[earlier].path, outputs[i].path)) continue;
      return base::UsageError(
          absl::StrCat(outputs[earlier].flag, " and ", outputs[i].flag, " name the same file"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParseChatTemplate(const std::string& text) {
  if (absl::EndsWith(text, ".toml")) return ParseFile(text);
  RETURN_IF_ERROR(engine::FindChatTemplate(text).status());
  return text;
}

std::vector<std::string> QuantizationNames() {
  std::vector<std::string> names;
  for (const kernels::Quantization kind : kernels::kAllQuantizations) {
    names.emplace_back(QuantizationName(kind));
  }
  return names;
}

absl::StatusOr<kernels::Quantization> ParseQuantizationFlag(const std::string& text) {
  RETURN_IF_ERROR(ParseChoice(text, QuantizationNames()).status());
  return kernels::ParseQuantization(text);
}

absl::StatusOr<std::string> ParseLoraFlag(const std::string& text) {
  if (engine::IsPeftFolder(text)) return text;
  if (!text.empty() && !absl::StrContains(text, '=')) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is neither a list such as rank=16 nor a folder with adapter_config.json"));
  }
  RETURN_IF_ERROR(engine::ParseLora(text).status());
  return text;
}

std::string DescribeChatTemplate(const std::string& text, const std::string& fallback) {
  const std::vector<std::string> names = engine::ChatTemplateNames();
  return absl::StrCat(text, ": ", absl::StrJoin(names.begin(), names.begin() + 3, ", "),
                      ", ..., or a .toml file [", fallback, "]");
}

absl::StatusOr<std::string> ParseFolder(const std::string& path) {
  if (!path.empty() && path != base::kStandardStream) return path;
  return absl::InvalidArgumentError("expected a folder");
}

}  // namespace stagecoach::tools
