// `train --tensorboard`, decoded here according to TensorFlow's documents of both formats.
#include "tools/stagecoach/train/tensorboard_log.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::TestFolder;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// CRC-32C, bit by bit.
uint32_t Crc(absl::string_view bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 == 1 ? (crc >> 1) ^ 0x82F63B78 : crc >> 1;
  }
  return crc ^ 0xFFFFFFFF;
}

template <typename T>
T Take(absl::string_view& bytes) {
  T value = {};
  EXPECT_GE(bytes.size(), sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

// Returns the data of each record, whose checksums must be right.
std::vector<std::string> Records(absl::string_view file) {
  std::vector<std::string> records;
  const auto expect_sum = [&](absl::string_view bytes) {
    const uint32_t unmasked = Take<uint32_t>(file) - 0xa282ead8;
    EXPECT_EQ(std::rotl(unmasked, 15), Crc(bytes));
  };
  while (!file.empty()) {
    const absl::string_view length_bytes = file.substr(0, 8);
    const auto length = Take<uint64_t>(file);
    expect_sum(length_bytes);
    const absl::string_view data = file.substr(0, length);
    file.remove_prefix(length);
    expect_sum(data);
    records.emplace_back(data);
  }
  return records;
}

// The values of a message's fields; numbers are kept as their bytes.
using Message = std::multimap<uint64_t, std::string>;
Message Decode(absl::string_view bytes) {
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = Take<uint8_t>(bytes);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
  };
  Message message;
  while (!bytes.empty()) {
    const uint64_t key = varint();
    std::string value;
    if (key % 8 == 0) {
      const uint64_t number = varint();
      value.assign(reinterpret_cast<const char*>(&number), sizeof(number));
    } else {
      const uint64_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : varint();
      value = std::string(bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
    message.emplace(key / 8, value);
  }
  return message;
}

template <typename T>
T Number(const Message& message, uint64_t field) {
  absl::string_view bytes = message.find(field)->second;
  return Take<T>(bytes);
}

std::map<std::string, float> ScalarsOf(const Message& event) {
  std::map<std::string, float> scalars;
  const Message summary = Decode(event.find(5)->second);
  for (const auto& [field, bytes] : summary) {
    EXPECT_EQ(field, 1);
    const Message value = Decode(bytes);
    scalars[value.find(1)->second] = Number<float>(value, 2);
  }
  return scalars;
}

class TensorBoard : public ::testing::Test {
 protected:
  // Returns the events of the only file in the folder.
  std::vector<Message> Events() const {
    std::vector<Message> events;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      EXPECT_THAT(entry.path().filename().string(), ::testing::StartsWith("events.out.tfevents."));
      EXPECT_TRUE(events.empty());
      std::stringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      const std::string file = text.str();
      for (const std::string& record : Records(file)) events.push_back(Decode(record));
    }
    return events;
  }
  std::string folder() const { return (folder_.path() / "board").string(); }

  const TestFolder folder_;
};

TEST(TensorBoardTest, ChecksByTheSumOfTheStandard) { EXPECT_EQ(Crc("123456789"), 0xE3069283); }

TEST_F(TensorBoard, HasTheFiguresOfStepsAndEvaluations) {
  ASSERT_OK_AND_ASSIGN(const auto log,
                       TensorBoardLog::Open(folder(), {.every_steps = 200}, std::nullopt));
  log->Step({.run_step = 200,
             .step_result = {.loss = 0.5, .learning_rate = 0.25F},
             .samples_per_second = 1000});
  log->Step({.run_step = 300});
  log->Epoch(
      {.step = 300, .loss = 2, .train_accuracy = 0.5, .test_accuracy = 0.75, .test_loss = 4});
  const std::vector<Message> events = Events();
  ASSERT_THAT(events, SizeIs(4));
  EXPECT_EQ(events[0].find(3)->second, "brain.Event:2");
  EXPECT_EQ(Number<uint64_t>(events[2], 2), 200);
  EXPECT_THAT(ScalarsOf(events[2]),
              UnorderedElementsAre(Pair("step/loss", 0.5F), Pair("step/learning_rate", 0.25F),
                                   Pair("step/samples_per_second", 1000.0F)));
  EXPECT_EQ(Number<uint64_t>(events[3], 2), 300);
  EXPECT_THAT(ScalarsOf(events[3]),
              UnorderedElementsAre(Pair("train/loss", 2.0F), Pair("train/accuracy", 0.5F),
                                   Pair("test/loss", 4.0F), Pair("test/accuracy", 0.75F)));
  EXPECT_GT(Number<double>(events[3], 1), 1.7e9);  // seconds since 1970
}

// At the start of a session TensorBoard drops the later steps of other files.
TEST_F(TensorBoard, SaysFromWhichStepARunGoesOn) {
  for (const auto& [start, step] : std::vector<std::pair<std::optional<RunLog::Start>, uint64_t>>{
           {std::nullopt, 0}, {RunLog::Start{.step = 300}, 301}}) {
    ASSERT_OK(TensorBoardLog::Open(folder(), {}, start));
    const std::vector<Message> events = Events();
    ASSERT_THAT(events, SizeIs(2));
    EXPECT_EQ(Number<uint64_t>(events[1], 2), step);
    EXPECT_EQ(Number<uint64_t>(Decode(events[1].find(7)->second), 1), 1);
    std::filesystem::remove_all(folder());
  }
}

TEST_F(TensorBoard, IsWrittenByARun) {
  const Finished run =
      RunStagecoach({"train", "--data", "synthetic:200x16x4", "--layers", "5", "--width", "16",
                     "--global-batch-size", "40", "--epochs", "1", "--tensorboard", folder()});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(Events(), SizeIs(2 + 5 + 1));
}

}  // namespace
}  // namespace stagecoach::tools
