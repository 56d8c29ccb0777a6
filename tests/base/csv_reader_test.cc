#include "base/text/csv_reader.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::base {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using Records = std::vector<std::vector<std::string>>;

absl::StatusOr<Records> Split(const std::string& text) {
  CsvReader reader(text);
  Records records;
  std::vector<CsvField> record;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(record);
    if (!found.ok()) return found.status();
    if (!*found) return records;
    records.emplace_back();
    for (const CsvField& field : record) records.back().push_back(field.text);
  }
}

void ExpectRecords(const std::string& text, const Records& expected) {
  const absl::StatusOr<Records> records = Split(text);
  ASSERT_OK(records);
  EXPECT_EQ(*records, expected);
}

TEST(CsvReader, SplitsAtCommasAndLineEnds) {
  ExpectRecords("", {});
  ExpectRecords("a,b\nc,d\n", {{"a", "b"}, {"c", "d"}});
  ExpectRecords("a,b\r\n\"c\",d\r\n", {{"a", "b"}, {"c", "d"}});
  ExpectRecords("a\nb", {{"a"}, {"b"}});
}

TEST(CsvReader, KeepsWhatIsInFields) {
  ExpectRecords(",\n\"\",", {{"", ""}, {"", ""}});
  ExpectRecords("a\n\nb", {{"a"}, {""}, {"b"}});
  ExpectRecords(" a , b", {{" a ", " b"}});
  ExpectRecords("\"a,b\",\"say \"\"hi\"\"\"\n\"two\r\nlines\",x\n",
                {{"a,b", "say \"hi\""}, {"two\r\nlines", "x"}});
  ExpectRecords("\xEF\xBB\xBF\"a\",b", {{"a", "b"}});  // but not a byte order mark
}

TEST(CsvReader, CountsLinesAndColumns) {
  CsvReader reader("\xEF\xBB\xBFx,yy,\"z\nz\"\r\n\"b\",c");
  std::vector<CsvField> record;
  ASSERT_TRUE(*reader.Next(record));
  EXPECT_EQ(record[1].position.line, 1);
  EXPECT_EQ(record[1].position.column, 3);
  ASSERT_TRUE(*reader.Next(record));
  EXPECT_EQ(record[1].position.line, 3);
  EXPECT_EQ(record[1].position.column, 5);
}

TEST(CsvReader, CountsColumnsFromTheLineEndInsideAQuotedField) {
  CsvReader reader("\"a\nb\",c");
  std::vector<CsvField> record;
  ASSERT_TRUE(*reader.Next(record));
  EXPECT_EQ(record[1].position.line, 2);
  EXPECT_EQ(record[1].position.column, 4);
}

TEST(CsvReader, SaysWhereAndWhatIsWrong) {
  const Refusal<std::string> refusals[] = {
      {"a,b\"c\"\n", StartsWith("1:4: quote inside an unquoted field")},
      {"\"a\"b\n", StartsWith("1:4: text after a closing quote")},
      {"a,b\nc,\"d\ne\n", StartsWith("2:3: this quote is never closed")},
      {"a\rb", StartsWith("1:2: carriage return without a line feed")},
      {std::string("a\nb\0", 4), StartsWith("2:2: NUL byte")},
      {std::string("a\n\"\0\"", 5), StartsWith("2:2: NUL byte")},
  };
  ExpectRefusals(Split, refusals);
}

// Returns `count` characters, many of which have a meaning in a CSV file.
std::string TrickyText(uint64_t stream, uint64_t count) {
  constexpr char kLetters[] = "ab,\"\n\r ";
  const base::RandomStream random(1, stream);
  std::string text;
  for (uint64_t i = 0; i < count; ++i) {
    text.push_back(kLetters[random.Below(i, sizeof(kLetters) - 1)]);
  }
  return text;
}

TEST(CsvReader, ReadsBackWhateverIsQuoted) {
  for (uint64_t i = 0; i < 200; ++i) {
    Records records(1 + i % 4, std::vector<std::string>(1 + i % 3));
    std::string text;
    uint64_t stream = 100 * i;
    for (std::vector<std::string>& record : records) {
      absl::string_view separator;
      for (std::string& field : record) {
        field = TrickyText(stream++, i % 7);
        absl::StrAppend(&text, separator, "\"", absl::StrReplaceAll(field, {{"\"", "\"\""}}), "\"");
        separator = ",";
      }
      text.push_back('\n');
    }
    ExpectRecords(text, records);
  }
}

TEST(CsvReader, EitherSplitsOrRefusesAnyText) {
  for (uint64_t stream = 0; stream < 2000; ++stream) {
    const std::string text = TrickyText(stream, stream % 40);
    const absl::StatusOr<Records> records = Split(text);
    if (!records.ok()) {
      EXPECT_THAT(records, IsRefused(MatchesRegex("[0-9]+:[0-9]+: .*"))) << text;
      continue;
    }
    size_t bytes = 0;
    for (const auto& record : *records) {
      EXPECT_FALSE(record.empty());
      for (const std::string& field : record) bytes += field.size();
    }
    EXPECT_LE(bytes, text.size());
  }
}

}  // namespace
}  // namespace stagecoach::base
