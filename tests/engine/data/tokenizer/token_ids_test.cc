#include "engine/data/tokenizer/token_ids.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/engine/data/token_files.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::Refusal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::StatusIs;

// Writes a file and maps it; errors must name it.
absl::StatusOr<TokenIds> MapText(const std::string& contents, TokenFormat format,
                                 int64_t vocabulary = 0) {
  auto ids = TokenIds::Map(WriteTestFile(TestDirectory(), "tokens", contents), format, vocabulary);
  if (!ids.ok()) {
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr("/tokens: "));
  }
  return ids;
}

std::vector<int32_t> AllOfThem(const TokenIds& ids) {
  std::vector<int32_t> all(static_cast<size_t>(ids.size()));
  ids.Copy(0, absl::MakeSpan(all));
  return all;
}

TEST(TokenIds, AreTheBytesOfAText) {
  ASSERT_OK_AND_ASSIGN(const TokenIds ids, MapText("a\xC3\xA9\n", TokenFormat::kText));
  EXPECT_THAT(AllOfThem(ids), ElementsAre('a', 0xC3, 0xA9, '\n'));
  EXPECT_EQ(ids.largest(), 0xC3);
}

TEST(TokenIds, OfAnEmptyFileAreNone) {
  for (const TokenFormat format : {TokenFormat::kText, TokenFormat::kBin}) {
    ASSERT_OK_AND_ASSIGN(const TokenIds ids, MapText("", format));
    EXPECT_EQ(ids.size(), 0);
    EXPECT_EQ(ids.largest(), -1);
  }
}

TEST(TokenIds, OfTextAreUtf8AtItsLimits) {
  for (const std::string good : {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF",
                                 "\xEE\x80\x80", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_OK(MapText("12345678" + good, TokenFormat::kText));
  }
  for (const std::string bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2z", "\xE0\x9F\xBF", "\xE1\x80",
        "\xED\xA0\x80", "\xEF\x80z", "\xF0\x8F\xBF\xBF", "\xF1\x80\x80", "\xF4\x90\x80\x80",
        "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_THAT(MapText("12345678abc" + bad, TokenFormat::kText),
                StatusIs(kDataLoss, "at offset 11 is not UTF-8"));
  }
}

TEST(TokenIds, NamesTheByteThatIsNotUtf8) {
  // The bytes are past the part that is checked eight at a time.
  EXPECT_THAT(MapText("0123456789\xFFzzzzzzzzz", TokenFormat::kText),
              StatusIs(kDataLoss, "the byte 0xff at offset 10"));
}

TEST(TokenIds, AreReadFromARawFile) {
  ASSERT_OK_AND_ASSIGN(const TokenIds ids, MapText(RawTokens({1, 258, 65535}), TokenFormat::kBin));
  EXPECT_THAT(AllOfThem(ids), ElementsAre(1, 258, 65535));
  EXPECT_EQ(ids.largest(), 65535);
  EXPECT_THAT(MapText(RawTokens({1, 2}) + "x", TokenFormat::kBin),
              StatusIs(kDataLoss, "5 bytes, expected tokens of 2"));
}

// Some files look like ids of 32 bits, which scripts for large vocabularies write, and some do not.
TEST(TokenIds, OfARawFileHave16Bits) {
  const auto file = [](int64_t count, int64_t vocabulary, int bytes) {
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(i * 7919 % vocabulary);
    return LittleEndian(ids, bytes);
  };
  for (const int64_t vocabulary : {2, 300, 50'257, 128'000, 1'000'000, 1 << 24}) {
    for (const int bytes : {4, 8}) {
      EXPECT_THAT(MapText(file(3000, vocabulary, bytes), TokenFormat::kBin),
                  IsRefused("every second id of 16 bits is at most"));
    }
    EXPECT_OK(
        MapText(LlmcTokens({}, 3000, 20240801, 7) + file(3000, vocabulary, 4), TokenFormat::kBin));
  }
  for (const int64_t vocabulary : {1, 2, 3, 65, 300, 50'257, 65'536}) {
    EXPECT_OK(MapText(file(3000, vocabulary, 2), TokenFormat::kBin));
  }
  EXPECT_OK(MapText(file(100, 50'257, 4), TokenFormat::kBin));  // may be coincidence
}

TEST(TokenIds, AreReadBehindAHeader) {
  ASSERT_OK_AND_ASSIGN(const TokenIds ids, MapText(LlmcTokens({7, 50256}, 2), TokenFormat::kBin));
  EXPECT_THAT(AllOfThem(ids), ElementsAre(7, 50256));
}

TEST(TokenIds, RefuseAHeaderThatDoesNotFit) {
  const Refusal<std::string> refusals[] = {
      {LlmcTokens({7, 8}, 3),
       "4 bytes after the header, expected 3 elements of 2 bytes: the file is truncated"},
      {LlmcTokens({7, 8}, 1),
       "4 bytes after the header, expected 1 elements of 2 bytes: the file has trailing"},
      {LlmcTokens({7, 8}, 2) + "x", "5 bytes after the header, expected 2 elements"},
      {LlmcTokens({}, 0).substr(0, 1023), "1023 bytes, expected llm.c's header of 1024"},
      {LlmcTokens({7}, 1, 20240520, 2), "version 2", kInvalidArgument},
      {LlmcTokens({}, -1), "-1 tokens", kInvalidArgument},
      {LlmcTokens({7, 0}, 1, 20240801, 1),
       "version 1 and 1 tokens in llm.c's header, expected version 7", kInvalidArgument},
  };
  ExpectRefusals([](const std::string& contents) { return MapText(contents, TokenFormat::kBin); },
                 refusals, kDataLoss);
}

TEST(TokenIds, MayTakeFourBytes) {
  const auto file = [](int64_t second) {
    return LlmcTokens({}, 2, 20240801, 7) + LittleEndian(std::vector<int64_t>{128'255, second}, 4);
  };
  ASSERT_OK_AND_ASSIGN(const TokenIds ids, MapText(file(5), TokenFormat::kBin));
  EXPECT_THAT(AllOfThem(ids), ElementsAre(128'255, 5));
  EXPECT_THAT(MapText(file(5).substr(0, 1031), TokenFormat::kBin),
              StatusIs(kDataLoss, "expected 2 elements of 4"));
  EXPECT_THAT(MapText(file(0xFFFFFFFF), TokenFormat::kBin), IsRefused("token 1 is 4294967295"));
}

TEST(TokenIds, AreReadFromArrays) {
  for (const int version : {1, 2, 3}) {
    ASSERT_OK_AND_ASSIGN(
        const TokenIds two,
        MapText(NpyFile(NpyHeader("<u2", 2), RawTokens({1, 65535}), version), TokenFormat::kNpy));
    EXPECT_THAT(AllOfThem(two), ElementsAre(1, 65535));
  }
  const std::vector<int64_t> ids = {3, 70000, 5};
  for (const char* type : {"<u4", "<i4", "<i8"}) {
    const int bytes = type[2] - '0';
    ASSERT_OK_AND_ASSIGN(
        const TokenIds read,
        MapText(NpyFile(NpyHeader(type, 3), LittleEndian(ids, bytes)), TokenFormat::kNpy));
    EXPECT_THAT(AllOfThem(read), ElementsAre(3, 70000, 5)) << type;
  }
}

TEST(TokenIds, OfArraysNeedTheRightTypeAndSize) {
  const std::string two = RawTokens({1, 2});
  for (const char* type : {">u2", "<u1", "<f4", "|u1", "<u8"}) {
    EXPECT_THAT(MapText(NpyFile(NpyHeader(type, 2), two), TokenFormat::kNpy), IsRefused(type));
  }
  EXPECT_THAT(
      MapText(NpyFile(NpyHeader("<u2", 3), two), TokenFormat::kNpy),
      StatusIs(kDataLoss,
               "4 bytes after the header, expected 3 elements of 2 bytes: the file is truncated"));
  EXPECT_THAT(MapText(NpyFile(NpyHeader("<i8", 9223372036854775807), two), TokenFormat::kNpy),
              StatusIs(kDataLoss, "expected 9223372036854775807 elements of 8 bytes"));
  EXPECT_THAT(MapText(NpyFile(NpyHeader("<u2", 1), two), TokenFormat::kNpy),
              StatusIs(kDataLoss, "trailing bytes"));
  EXPECT_THAT(MapText(NpyFile("{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2)}", two),
                      TokenFormat::kNpy),
              IsRefused("an array of shape (1, 2), expected one of one dimension"));
}

TEST(TokenIds, AreWithinTheVocabulary) {
  const std::string contents = RawTokens({3, 9, 12, 4});
  EXPECT_OK(MapText(contents, TokenFormat::kBin, 13));
  EXPECT_THAT(MapText(contents, TokenFormat::kBin, 12),
              IsRefused("token 2 is 12, expected 0 to 11, of a vocabulary of 12"));
  EXPECT_OK(TokenIds::Of({0, 4}, 5));
  EXPECT_THAT(TokenIds::Of({0, 5}, 5), IsRefused("token 1 is 5"));
}

TEST(TokenIds, AreNeitherNegativeNorHuge) {
  const auto array = [](int64_t id) {
    return NpyFile(NpyHeader("<i8", 2), LittleEndian(std::vector<int64_t>{0, id}, 8));
  };
  EXPECT_OK(MapText(array(kMaxVocabulary - 1), TokenFormat::kNpy));
  for (const int64_t id : {int64_t{-1}, kMaxVocabulary, int64_t{1} << 40}) {
    EXPECT_THAT(MapText(array(id), TokenFormat::kNpy),
                IsRefused(absl::StrCat("token 1 is ", id, ", expected 0 to 16777215")));
  }
}

TEST(TokenIds, ArePartsOfOthers) {
  ASSERT_OK_AND_ASSIGN(const TokenIds ids, TokenIds::Of({5, 6, 7, 8}));
  const TokenIds part = ids.Part(1, 2);
  EXPECT_THAT(AllOfThem(part), ElementsAre(6, 7));
  EXPECT_THAT(AllOfThem(part.Part(1, 1)), ElementsAre(7));
  EXPECT_EQ(part.largest(), 8);
  EXPECT_DEATH(ids.Part(2, 3), "3 tokens from 2 on, of 4");
  std::vector<int32_t> out(2);
  EXPECT_DEATH(part.Copy(1, absl::MakeSpan(out)), "2 tokens from 1 on, of 2");
}

TEST(TokenIds, NamesAMissingFile) {
  EXPECT_THAT(TokenIds::Map("/no/such", TokenFormat::kText), StatusIs(kNotFound, "/no/such"));
  EXPECT_THAT(TokenIds::Map(TestDirectory(), TokenFormat::kText), StatusIs(kInvalidArgument));
}

TEST(TokenIds, JoinedFollowEachOther) {
  ASSERT_OK_AND_ASSIGN(const TokenIds text, MapText("ab", TokenFormat::kText));
  ASSERT_OK_AND_ASSIGN(const TokenIds raw, MapText(RawTokens({300, 301, 302}), TokenFormat::kBin));
  const TokenIds none = TokenIds::Of({}).value();
  const TokenIds ids = TokenIds::Join({none, text, none, raw, TokenIds::Of({7}).value()});
  const std::vector<int32_t> expected = {'a', 'b', 300, 301, 302, 7};
  EXPECT_EQ(AllOfThem(ids), expected);
  EXPECT_EQ(ids.largest(), 302);
  for (int64_t first = 0; first <= ids.size(); ++first) {
    for (int64_t count = 0; count <= ids.size() - first; ++count) {
      const std::vector<int32_t> some(expected.begin() + first, expected.begin() + first + count);
      std::vector<int32_t> copied(static_cast<size_t>(count));
      ids.Copy(first, absl::MakeSpan(copied));
      EXPECT_EQ(copied, some);
      EXPECT_EQ(AllOfThem(ids.Part(first, count)), some);
    }
  }
  EXPECT_THAT(AllOfThem(ids.Part(1, 4).Part(1, 2)), ElementsAre(300, 301));
  EXPECT_THAT(AllOfThem(TokenIds::Join({ids.Part(1, 2), ids})),
              ElementsAre('b', 300, 'a', 'b', 300, 301, 302, 7));
  EXPECT_EQ(TokenIds::Join({none}).size(), 0);
}

}  // namespace
}  // namespace stagecoach::engine
