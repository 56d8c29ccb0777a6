#include "tools/stagecoach/train/tensorboard_log.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/system/file.h"

namespace stagecoach::tools {
namespace {

// The CRC of each byte (RFC 3720, appendix B.4: the polynomial 0x1EDC6F41, reflected).
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) * 0x82F63B78U);
    table[byte] = crc;
  }
  return table;
}();

uint32_t MaskedCrc(absl::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc = kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (crc >> 8);
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

// Returns a value's bytes, little-endian.
template <typename T>
std::string Fixed(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string Record(absl::string_view data) {
  const std::string length = Fixed(uint64_t{data.size()});
  return absl::StrCat(length, Fixed(MaskedCrc(length)), data, Fixed(MaskedCrc(data)));
}

// Encode the fields of protocol-buffer messages: a key, number * 8 + type of encoding, and a value.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}
std::string Key(uint64_t number, uint64_t encoding) { return Varint(number * 8 + encoding); }
std::string VarintField(int number, uint64_t value) {
  return absl::StrCat(Key(number, 0), Varint(value));
}
std::string DoubleField(int number, double value) {
  return absl::StrCat(Key(number, 1), Fixed(std::bit_cast<uint64_t>(value)));
}
std::string BytesField(int number, absl::string_view value) {
  return absl::StrCat(Key(number, 2), Varint(value.size()), value);
}
std::string FloatField(int number, float value) {
  return absl::StrCat(Key(number, 5), Fixed(std::bit_cast<uint32_t>(value)));
}

// Returns an Event with the field that determines its kind.
std::string Event(int64_t step, absl::string_view field) {
  constexpr int kWallTime = 1, kStep = 2;
  return absl::StrCat(
      DoubleField(kWallTime, absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())),
      VarintField(kStep, static_cast<uint64_t>(step)), field);
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "host";
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLog>> TensorBoardLog::Open(const std::string& folder,
                                                             const Options& options,
                                                             const std::optional<Start>& start) {
  constexpr int kFileVersion = 3, kSessionLog = 7, kStatus = 1, kStart = 1;
  RETURN_IF_ERROR(base::MakeFolders(folder));
  const std::string path =
      absl::StrCat(folder, "/events.out.tfevents.", absl::ToUnixMicros(absl::Now()), ".",
                   HostName(), ".", getpid());
  ASSIGN_OR_RETURN(LogFile file, LogFile::Open(path, true, "--tensorboard"));
  file.Write(Record(Event(0, BytesField(kFileVersion, "brain.Event:2"))));
  // From this step on, the contents of other files do not count.
  file.Write(Record(Event(start.has_value() ? start->step + 1 : 0,
                          BytesField(kSessionLog, VarintField(kStatus, kStart)))));
  return std::unique_ptr<RunLog>(new TensorBoardLog(options, std::move(file)));
}

void TensorBoardLog::Step(const engine::FitProgress& progress) {
  if (!options_.Records(progress.run_step)) return;
  Scalars scalars = {{"step/learning_rate", progress.step_result.learning_rate},
                     {"step/samples_per_second", progress.samples_per_second}};
  if (progress.step_result.skipped_for.empty())
    scalars.emplace_back("step/loss", progress.step_result.loss);
  Add(progress.run_step, scalars);
}

void TensorBoardLog::Evaluation(const engine::EpochResult& result) {
  Scalars scalars = {{"train/loss", result.loss}, {"test/loss", result.test_loss}};
  const Measures& measures = options_.measures;
  if (measures.has_rmse()) {
    scalars.emplace_back("train/rmse", measures.Rmse(result.loss));
    scalars.emplace_back("test/rmse", measures.Rmse(result.test_loss));
  } else {
    scalars.emplace_back("train/accuracy", result.train_accuracy);
    scalars.emplace_back("test/accuracy", result.test_accuracy);
  }
  if (options_.measures.has_perplexity) {
    scalars.emplace_back("test/perplexity", std::exp(result.test_loss));
  }
  for (const auto& [metric, value] : result.more) {
    scalars.emplace_back(absl::StrReplaceAll(metric, {{"_", "/"}}), value);
  }
  Add(result.step, scalars);
}

void TensorBoardLog::Add(int64_t step, const Scalars& scalars) {
  constexpr int kSummary = 5, kValue = 1, kTag = 1, kSimpleValue = 2;
  std::string summary;
  for (const auto& [tag, value] : scalars) {
    const std::string scalar =
        absl::StrCat(BytesField(kTag, tag), FloatField(kSimpleValue, static_cast<float>(value)));
    absl::StrAppend(&summary, BytesField(kValue, scalar));
  }
  file_.Write(Record(Event(step, BytesField(kSummary, summary))));
}

}  // namespace stagecoach::tools
