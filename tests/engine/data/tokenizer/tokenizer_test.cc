#include "engine/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/system/file.h"
#include "base/text/utf8.h"
#include "engine/data/tokenizer/bpe_merges.h"
#include "engine/data/tokenizer/characters.h"
#include "engine/data/tokenizer/split_pattern.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using absl::StatusCode::kInvalidArgument;
using absl::StatusCode::kNotFound;
using nlohmann::json;
using ::stagecoach::testing::IsRefused;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::StatusIs;

using IdList = std::vector<int32_t>;

std::string Fixture(const std::string& name) {
  return absl::StrCat(STAGECOACH_TOKENIZER_FIXTURES, "/", name);
}

json FixtureJson(const std::string& name) {
  return json::parse(base::ReadFile(Fixture(name), 1 << 20).value());
}

std::shared_ptr<const Tokenizer> LoadFixture(const std::string& name) {
  return Tokenizer::Load(Fixture(name)).value();
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadJson(const json& file) {
  return Tokenizer::Load(WriteTestFile(TestDirectory(), "tokenizer.json", file.dump()));
}

IdList Joined(IdList first, const IdList& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Encodes without what the file puts before a text.
IdList EncodeInside(const Tokenizer& tokenizer, const std::string& text) {
  const size_t before = tokenizer.Encode("").value().size();
  IdList ids = tokenizer.Encode(text).value();
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(before));
  return ids;
}

// Returns characters of all lengths, including those at which patterns split.
std::string RandomText(std::mt19937& random, int characters) {
  const std::vector<std::string> often = {
      " ",  " ",       "\n",    "\r", "'s", "'LL", "1", "22", "a", "The", "\u00a0", "<|endoftext|>",
      "<|", "e\u0301", "\u4e2d"};
  std::string text;
  for (int i = 0; i < characters; ++i) {
    if (random() % 3 != 0) {
      text += often[random() % often.size()];
      continue;
    }
    const int bits = std::vector<int>{7, 11, 16, 20}[random() % 4];
    const uint32_t character = random() % (1U << bits);
    const auto tail = [&](int shift) {
      return static_cast<char>(0x80 | (character >> shift & 0x3F));
    };
    std::string bytes;
    if (bits == 7) bytes = {static_cast<char>(character)};
    if (bits == 11) bytes = {static_cast<char>(0xC0 | character >> 6), tail(0)};
    if (bits == 16) bytes = {static_cast<char>(0xE0 | character >> 12), tail(6), tail(0)};
    if (bits == 20) bytes = {static_cast<char>(0xF0 | character >> 18), tail(12), tail(6), tail(0)};
    if (base::Utf8Prefix(bytes) == bytes.size()) text += bytes;
  }
  return text;
}

class TokenizerOfAFile : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerOfAFile, GivesTheIdsOfTheLibraryThatMadeIt) {
  const auto tokenizer = LoadFixture(GetParam());
  const json cases = FixtureJson("cases.json")[GetParam()];
  ASSERT_GE(cases.size(), 80);
  for (const json& one : cases) {
    const std::string text = one[0];
    ASSERT_OK_AND_ASSIGN(const IdList ids, tokenizer->Encode(text));
    EXPECT_EQ(ids, one[1].get<IdList>()) << one[0];
  }
}

TEST_P(TokenizerOfAFile, DecodesWhatItEncodes) {
  const auto tokenizer = LoadFixture(GetParam());
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::string text = RandomText(random, 40);
    const IdList ids = EncodeInside(*tokenizer, text);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    for (const int32_t id : ids) ASSERT_LT(id, tokenizer->vocabulary());
  }
}

TEST_P(TokenizerOfAFile, RefusesWhatIsNotUtf8ByItsOffset) {
  const auto tokenizer = LoadFixture(GetParam());
  const std::string words(300'000, 'x');
  EXPECT_THAT(tokenizer->Encode("abc\xFF"),
              StatusIs(kDataLoss, "the byte 0xff at offset 3 is not UTF-8"));
  EXPECT_THAT(tokenizer->Encode("abc\xE2\x82"), StatusIs(kDataLoss, "at offset 3"));
  EXPECT_THAT(tokenizer->Encode(words + "\xE2\x82!" + words),
              StatusIs(kDataLoss, "at offset 300000"));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerOfAFile,
                         ::testing::Values("gpt2.json", "llama3.json", "spm.model"),
                         [](const auto& name) {
                           const std::string file = name.param;
                           return file.substr(0, file.find('.'));
                         });

// Returns FNV-1a over the numbers, as make.py computes it.
std::string HashOf(const IdList& ids) {
  uint64_t hash = 14695981039346656037U;
  for (const int32_t id : ids) hash = (hash ^ static_cast<uint32_t>(id)) * 1099511628211U;
  return absl::StrCat(absl::Hex(hash));
}

// Returns the text of a block of 4096 code points, as make.py does.
std::string CodePointText(uint32_t block) {
  std::string text;
  for (uint32_t point = block * 4096; point < (block + 1) * 4096; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    std::string character;
    AppendCharacter(point, character);
    absl::StrAppend(&text, character, " a", character, "b\n");
  }
  return text;
}

class TokenizerLikeAPublishedOne : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerLikeAPublishedOne, GivesTheIdsOfTheLibrary) {
  const auto tokenizer = LoadFixture(GetParam());
  const json all = FixtureJson("cases.json");
  for (const json& one : all[GetParam()]) {
    EXPECT_EQ(tokenizer->Encode(one[0].get<std::string>()).value(), one[1].get<IdList>()) << one[0];
  }
  const std::vector<std::string> hashes = all[absl::StrCat(GetParam(), ": odd")];
  ASSERT_EQ(hashes.size(), 500);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::string text = all["odd"][i];
    EXPECT_EQ(HashOf(tokenizer->Encode(text).value()), hashes[i]) << all["odd"][i];
  }
}

TEST_P(TokenizerLikeAPublishedOne, GivesTheIdsOfTheLibraryForAllCodePoints) {
  const auto tokenizer = LoadFixture(GetParam());
  const std::vector<std::string> hashes =
      FixtureJson("cases.json")[absl::StrCat(GetParam(), ": code points")];
  ASSERT_EQ(hashes.size(), 272);
  for (uint32_t block = 0; block < 272; ++block) {
    EXPECT_EQ(HashOf(tokenizer->Encode(CodePointText(block)).value()), hashes[block])
        << "block " << block;
  }
}

TEST_P(TokenizerLikeAPublishedOne, GivesTheIdsOfTheLibraryForALongText) {
  const auto tokenizer = LoadFixture(GetParam());
  // The words are those of make.py.
  const std::vector<std::string> words = {
      "the",        "e\u0301",       "\u4e2d", "12", "zzq", "<|a|>", "I'm",
      "\U0001f600", "\u1e9b\u0323x", "``",     " ",  "\n",  "</s>"};
  std::string text;
  for (size_t i = 0; i < 200'000; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", words[(i * i + i / 7) % words.size()]);
  }
  IdList ids;
  int parts = 0;
  ASSERT_OK(tokenizer->Encode(text, [&](absl::Span<const int32_t> some, size_t /*bytes*/) {
    ++parts;
    ids.insert(ids.end(), some.begin(), some.end());
    return absl::OkStatus();
  }));
  EXPECT_GT(parts, 2);
  const json hash = FixtureJson("cases.json")[absl::StrCat(GetParam(), ": long")][0];
  EXPECT_EQ(HashOf(ids), hash.get<std::string>());
}

TEST_P(TokenizerLikeAPublishedOne, DecodesWhatItEncodes) {
  const auto tokenizer = LoadFixture(GetParam());
  const std::string text = "the king and the queen";
  EXPECT_THAT(tokenizer->Decode(tokenizer->Encode(text).value()), HasSubstr(text));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerLikeAPublishedOne,
                         ::testing::Values("qwen2.json", "smollm.json", "llama2.json",
                                           "mistral.json", "bert.json", "unigram.json", "odd.json"),
                         [](const auto& name) {
                           const std::string file = name.param;
                           return file.substr(0, file.find('.'));
                         });

// This holds even if the run is divided between two tokens.
TEST(SentencePieceOfWords, MakesOneOfUnknownWordsInARow) {
  const auto tokenizer = LoadFixture("words.model");
  const json all = FixtureJson("cases.json");
  for (const json& one : all["words.model"]) {
    EXPECT_EQ(tokenizer->Encode(one[0].get<std::string>()).value(), one[1].get<IdList>()) << one[0];
  }
  std::string texts[3];
  for (int i = 0; i < 3000; ++i) texts[0] += "zzq ";
  for (int i = 0; i < 800; ++i) texts[1] += "zzq qqz the zzq qqz the zzq ";
  for (int i = 0; i < 700; ++i) texts[2] += "the zzq zzq ";
  texts[2] += "the";
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(HashOf(tokenizer->Encode(texts[i]).value()),
              all["words.model: long"][i].get<std::string>())
        << i;
  }
}

class LongText : public ::testing::TestWithParam<const char*> {};

// Before a letter after the end of a line, both patterns split, whatever else there is.
TEST_P(LongText, BecomesWhatItsLinesBecome) {
  const auto tokenizer = LoadFixture(GetParam());
  std::mt19937 random(2);
  std::string text;
  IdList expected = tokenizer->Encode("").value();
  for (int i = 0; i < 4000; ++i) {
    // One line is longer than the part that is encoded at a time.
    const std::string line =
        absl::StrCat("L", i == 2000 ? std::string(700'000, 'a') : RandomText(random, 150), ".\n");
    text += line;
    expected = Joined(std::move(expected), EncodeInside(*tokenizer, line));
  }
  size_t done = 0;
  int parts = 0;
  IdList ids;
  ASSERT_OK(tokenizer->Encode(text, [&](absl::Span<const int32_t> some, size_t bytes) {
    EXPECT_GT(bytes, done);
    done = bytes;
    ++parts;
    ids.insert(ids.end(), some.begin(), some.end());
    return absl::OkStatus();
  }));
  EXPECT_EQ(done, text.size());
  EXPECT_GT(parts, 4);
  EXPECT_EQ(ids, expected);
}

INSTANTIATE_TEST_SUITE_P(Bpe, LongText, ::testing::Values("gpt2.json", "llama3.json"),
                         [](const auto& name) { return name.index == 0 ? "Gpt2" : "Llama3"; });

TEST(LongSentencePieceText, BecomesWhatItsWordsBecome) {
  const auto tokenizer = LoadFixture("spm.model");
  std::mt19937 random(3);
  std::vector<std::string> words;
  IdList expected;
  for (int i = 0; i < 100'000; ++i) {
    std::string word;
    for (size_t length = 1 + random() % 9; word.size() < length;) {
      word += static_cast<char>('a' + random() % 26);
      if (random() % 9 == 0)
        word += std::vector<std::string>{"\u0439", "\u03b1", "\u4e2d", "."}[random() % 4];
    }
    expected = Joined(std::move(expected), EncodeInside(*tokenizer, word));
    words.push_back(std::move(word));
  }
  ASSERT_OK_AND_ASSIGN(const IdList ids, tokenizer->Encode(absl::StrJoin(words, " ")));
  EXPECT_EQ(ids, expected);
}

TEST(Tokenizer, StopsWhereTheTakerFails) {
  const auto tokenizer = LoadFixture("gpt2.json");
  int calls = 0;
  EXPECT_THAT(tokenizer->Encode(std::string(2'000'000, '\n') + "x",
                                [&](absl::Span<const int32_t> /*ids*/, size_t /*bytes*/) {
                                  ++calls;
                                  return absl::CancelledError("enough");
                                }),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(calls, 1);
}

TEST(Tokenizer, RefusesWhatItCannotDivide) {
  const std::string text(Tokenizer::kLongestPart + 1, 'a');
  for (const char* name : {"gpt2.json", "spm.model"}) {
    EXPECT_THAT(LoadFixture(name)->Encode(text),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         "from offset 0 on, there is no place in 16777216 bytes"));
  }
}

TEST(Tokenizer, KnowsItsEndOfText) {
  EXPECT_EQ(LoadFixture("gpt2.json")->end_of_text(), 0);
  EXPECT_EQ(LoadFixture("llama3.json")->end_of_text(), 601);
  EXPECT_EQ(LoadFixture("spm.model")->end_of_text(), 2);
  EXPECT_EQ(LoadFixture("gpt2.json")->BytesOf(0), "<|endoftext|>");
  EXPECT_EQ(LoadFixture("spm.model")->BytesOf(2), "");
}

TEST(Tokenizer, CountsAllTokens) {
  EXPECT_EQ(LoadFixture("gpt2.json")->vocabulary(), 701);
  EXPECT_EQ(LoadFixture("llama3.json")->vocabulary(), 604);
  EXPECT_EQ(LoadFixture("spm.model")->vocabulary(), 500);
  EXPECT_EQ(LoadFixture("gpt2.json")->BytesOf(701), "");
  EXPECT_EQ(LoadFixture("gpt2.json")->BytesOf(-1), "");
}

TEST(Tokenizer, HasTheHashOfItsFile) {
  json file = FixtureJson("gpt2.json");
  ASSERT_OK_AND_ASSIGN(const auto one, LoadJson(file));
  ASSERT_OK_AND_ASSIGN(const auto same, LoadJson(file));
  file["added_tokens"].erase(1);
  ASSERT_OK_AND_ASSIGN(const auto other, LoadJson(file));
  EXPECT_EQ(one->hash(), same->hash());
  EXPECT_NE(one->hash(), other->hash());
}

TEST(TextDecoder, KeepsAPartOfACharacterForTheNextToken) {
  const auto tokenizer = LoadFixture("gpt2.json");
  ASSERT_OK_AND_ASSIGN(const IdList ids, tokenizer->Encode("a\U0001f600b"));
  ASSERT_EQ(ids.size(), 6);  // the emoji is no token
  TextDecoder decoder(*tokenizer);
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(decoder.Append(id));
  EXPECT_THAT(parts, ::testing::ElementsAre("a", "", "", "", "\U0001f600", "b"));
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(TextDecoder, ReplacesWhatIsNoCharacter) {
  const auto tokenizer = LoadFixture("gpt2.json");
  ASSERT_OK_AND_ASSIGN(const IdList ids, tokenizer->Encode("\U0001f600\U0001f600"));
  // The ids are three bytes of the first character, and all of the second except its last.
  EXPECT_EQ(tokenizer->Decode({ids[0], ids[1], ids[2], ids[4], ids[5], ids[6]}), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer->Decode({ids[1], ids[2]}), "\uFFFD\uFFFD");
  EXPECT_EQ(tokenizer->Decode({}), "");
}

TEST(TextDecoder, DropsTheSpaceThatSentencePieceAdds) {
  const auto tokenizer = LoadFixture("spm.model");
  ASSERT_OK_AND_ASSIGN(const IdList ids, tokenizer->Encode("the the"));
  EXPECT_EQ(tokenizer->BytesOf(ids[0]).substr(0, 1), " ");
  EXPECT_EQ(tokenizer->Decode(ids), "the the");
}

TEST(TokenizerJson, TakesBothFormsOfMerges) {
  json file = FixtureJson("gpt2.json");
  ASSERT_TRUE(file["model"]["merges"][0].is_array());
  for (json& merge : file["model"]["merges"]) {
    merge = absl::StrCat(merge[0].get<std::string>(), " ", merge[1].get<std::string>());
  }
  file["model"].erase("type");  // as in files of older versions
  ASSERT_OK_AND_ASSIGN(const auto old, LoadJson(file));
  const std::string text = "I'm the first 1234 of  them, and so on.\n";
  EXPECT_EQ(old->Encode(text).value(), LoadFixture("gpt2.json")->Encode(text).value());
}

TEST(TokenizerJson, MergesTheWholePieceOnlyIfItSaysSo) {
  json file = FixtureJson("llama3.json");
  ASSERT_EQ(file["model"]["ignore_merges"], true);
  // No merge leads to this token.
  file["model"]["vocab"]["zyx"] = 620;
  file["added_tokens"] = json::array();
  file["post_processor"] = nullptr;
  ASSERT_OK_AND_ASSIGN(const auto whole, LoadJson(file));
  EXPECT_EQ(EncodeInside(*whole, "zyx"), IdList{620});
  file["model"]["ignore_merges"] = false;
  ASSERT_OK_AND_ASSIGN(const auto merged, LoadJson(file));
  EXPECT_EQ(EncodeInside(*merged, "zyx").size(), 3);
}

TEST(TokenizerJson, AddsASpaceWhereATextOrAPartOfItBegins) {
  json file = FixtureJson("gpt2.json");
  const auto plain = LoadFixture("gpt2.json");
  file["pre_tokenizer"]["add_prefix_space"] = true;
  ASSERT_OK_AND_ASSIGN(const auto prefixed, LoadJson(file));
  const auto expect_same = [&](const std::string& text, const std::string& as) {
    EXPECT_EQ(prefixed->Encode(text).value(), plain->Encode(as).value()) << text;
  };
  expect_same("one two", " one two");
  expect_same(" one", " one");
  expect_same("\n\none", " \n\none");
  expect_same("one<|endoftext|>two", " one<|endoftext|> two");
  expect_same("<|endoftext|>", "<|endoftext|>");
  expect_same("", "");
  const std::string spaces(400'000, '\n');
  expect_same(spaces + "x", " " + spaces + "x");
}

// A change of a fixture, and what the refusal of the result says.
struct RefusedEdit {
  const char* pointer;
  json value;
  const char* message;
};

void ExpectRefusedEdits(const std::string& fixture, const std::vector<RefusedEdit>& edits) {
  for (const RefusedEdit& edit : edits) {
    json file = FixtureJson(fixture);
    file[json::json_pointer(edit.pointer)] = edit.value;
    EXPECT_THAT(LoadJson(file),
                IsRefused(AllOf(HasSubstr("tokenizer.json: "), HasSubstr(edit.message))))
        << edit.pointer;
  }
}

TEST(TokenizerJson, RefusesByNameWhatItDoesNotKnow) {
  ExpectRefusedEdits(
      "gpt2.json",
      {{"/version", "2.0", "$.version: \"2.0\", expected \"1.0\""},
       {"/model/type", "WordLevel", "$.model.type: \"WordLevel\" is not supported"},
       {"/model/type", "Unigram", "$.model.type: \"Unigram\" is not supported"},  // of bytes
       {"/model/dropout", 0.1, "$.model.dropout: is not supported"},
       {"/model/end_of_word_suffix", "</w>", "end_of_word_suffix: \"</w>\" is not supported"},
       {"/model/surprise", 1, "unknown key \"surprise\""},
       {"/surprise", 1, "unknown key \"surprise\""},
       {"/normalizer", {{"type", "Nmt"}}, "$.normalizer.type: \"Nmt\" is not supported"},
       {"/normalizer", {{"type", "NFC"}, {"x", 1}}, "unknown key \"x\""},
       {"/normalizer",
        {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}},
        "the key \"String\" is missing"},
       {"/decoder/type", "CTC", "$.decoder.type: \"CTC\" is not supported"},
       {"/decoder",
        {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}},
        "Strip is supported for the first space alone"},
       {"/pre_tokenizer/type", "Whitespace", "type: \"Whitespace\" is not supported"},
       {"/post_processor/type", "Other", "$.post_processor.type: \"Other\" is not supported"},
       {"/added_tokens/0/content", "", "$.added_tokens[0].content: is empty"},
       {"/added_tokens/0/id", 10'000'000, "$.added_tokens[0].id: must be from 0"}});
  ExpectRefusedEdits(
      "llama3.json",
      {{"/pre_tokenizer/pretokenizers/0/behavior", "Removed", "\"Removed\" is not supported"},
       {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\bx", "\"\\b\" is not supported"},
       {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, "behind another step"},
       {"/pre_tokenizer/pretokenizers/0/type", "Whitespace", "\"Whitespace\" is not supported"},
       {"/pre_tokenizer/pretokenizers/0", {{"type", "ByteLevel"}}, "is to be the last step"}});
  ExpectRefusedEdits(
      "mistral.json",
      {{"/pre_tokenizer/prepend_scheme", "last", "\"last\" is not supported"},
       {"/model/unk_token", "<none>", "$.model.unk_token: \"<none>\" is not in the"}});
  ExpectRefusedEdits("unigram.json",
                     {{"/model/unk_id", 100'000, "$.model.unk_id: must be from 0"},
                      {"/model/vocab/3", "a", "$.model.vocab[3]: expected a token and its score"}});
  ExpectRefusedEdits("bert.json", {{"/model/unk_token", "<none>", "\"<none>\" is not in the"}});
}

// Every type of the library is either read as the library reads it, or refused with its place.
TEST(TokenizerJson, HasEachPartOfTheLibraryReadRightOrRefusedByName) {
  const json odd = FixtureJson("cases.json")["odd"];
  std::set<std::string> read;
  for (const json& one : FixtureJson("parts.json")) {
    const std::string section = one["section"], type = one["part"]["type"];
    const std::string name = absl::StrCat(one["file"].get<std::string>(), ": ", one["part"].dump());
    json file = FixtureJson(one["file"]);
    file[section] = one["part"];
    const auto tokenizer = LoadJson(file);
    if (!tokenizer.ok()) {
      EXPECT_THAT(tokenizer, IsRefused("tokenizer.json: $.")) << name;
      EXPECT_THAT(std::string(tokenizer.status().message()), Not(HasSubstr("\n"))) << name;
      continue;
    }
    read.insert(absl::StrCat(section, " ", type));
    IdList results;
    for (const json& text : odd) {
      const IdList ids = (*tokenizer)->Encode(text.get<std::string>()).value();
      if (section == "decoder") {
        for (const char c : (*tokenizer)->Decode(ids)) results.push_back(static_cast<uint8_t>(c));
      } else {
        results.insert(results.end(), ids.begin(), ids.end());
      }
      results.push_back(-1);
    }
    EXPECT_EQ(HashOf(results), one.value("hash", "")) << name;
    if (!one.contains("code points")) continue;
    results.clear();
    for (uint32_t block = 0; block < 32; ++block) {
      const IdList ids = (*tokenizer)->Encode(CodePointText(block)).value();
      results.insert(results.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(HashOf(results), one["code points"].get<std::string>()) << name;
  }
  EXPECT_EQ(absl::StrJoin(read, ", "),
            "decoder ByteFallback, decoder ByteLevel, decoder Fuse, decoder Metaspace, "
            "decoder Replace, decoder Sequence, decoder Strip, decoder WordPiece, "
            "normalizer BertNormalizer, normalizer Lowercase, normalizer NFC, normalizer NFD, "
            "normalizer NFKC, normalizer NFKD, normalizer Prepend, normalizer Replace, "
            "normalizer Sequence, normalizer StripAccents, post_processor BertProcessing, "
            "post_processor ByteLevel, post_processor RobertaProcessing, post_processor Sequence, "
            "post_processor TemplateProcessing, pre_tokenizer BertPreTokenizer, "
            "pre_tokenizer ByteLevel, pre_tokenizer Digits, pre_tokenizer Metaspace, "
            "pre_tokenizer Sequence, pre_tokenizer Split");
}

// The library assigns to an added token the id that the model has for it, or else the next free
// one.
TEST(TokenizerJson, RefusesAddedTokensWhoseIdsTheLibraryDoesNotTake) {
  const auto load = [](const std::vector<std::pair<const char*, int>>& added) {
    json file = FixtureJson("gpt2.json");
    for (const auto& [content, id] : added) {
      file["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
    }
    return LoadJson(file);
  };
  ASSERT_OK_AND_ASSIGN(const auto in_order, load({{"<|a|>", 701}, {"<|b|>", 702}}));
  EXPECT_EQ(in_order->Encode("Hello <|a|>user<|b|> bar").value(),
            (IdList{40, 409, 79, 221, 701, 389, 273, 702, 269, 285}));
  const std::pair<std::vector<std::pair<const char*, int>>, const char*> refusals[] = {
      {{{"<|a|>", 711}, {"<|b|>", 712}}, "[2].id: is 711, but the library tokenizers gives"},
      {{{"<|b|>", 702}, {"<|a|>", 701}}, "\"<|b|>\" the id 701, whatever the file says"},
      {{{"<|a|>", 5}, {"<|b|>", 6}}, "\"<|a|>\" the id 701"},
      {{{"a", 701}}, "\"a\" the id 65"},
      {{{"<extra>", 701}}, "\"<extra>\" the id 700"}};
  for (const auto& [added, message] : refusals) {
    EXPECT_THAT(load(added), IsRefused(message));
  }
}

TEST(TokenizerJson, RefusesWhatContradictsItself) {
  ExpectRefusedEdits(
      "gpt2.json",
      {{"/model/merges/3", {"a", "qqq"}, "$.model.merges[3]: \"qqq\" is not in the vocabulary"},
       {"/model/merges/3", "ab", "$.model.merges[3]: expected two tokens"},
       {"/model/merges/3", 7, "$.model.merges[3]: expected two tokens"},
       {"/model/vocab/a", 1, "is there twice"},
       {"/model/vocab/a", -1, "the id of \"a\" is none from 0"},
       {"/model/vocab", json::object(), "has no symbol"}});
  EXPECT_THAT(LoadJson(json::array()), IsRefused("expected an object"));
}

TEST(Tokenizer, RefusesFilesThatAreNone) {
  const std::string directory = TestDirectory();
  EXPECT_THAT(Tokenizer::Load(directory + "/none.json"), StatusIs(kNotFound));
  EXPECT_THAT(Tokenizer::Load(WriteTestFile(directory, "a.txt", "x")),
              IsRefused("a.txt: expected the name of"));
  EXPECT_THAT(Tokenizer::Load(WriteTestFile(directory, "a.json", "{")), IsRefused("a.json:1:2: "));
  EXPECT_THAT(Tokenizer::Load(WriteTestFile(directory, "a.model", "no model")),
              IsRefused("a.model: not a model that SentencePiece"));
}

TEST(SplitPattern, RefusesWhatMeansSomethingElseToOniguruma) {
  for (const char* pattern :
       {"^a", "\\bx", "\\w+", "(?<=a)b", "(?m:a)", "a{1,2}+", "[[a]b]", "[a&&b]", "[]a]", "(*UTF)x",
        "\\Kx", "(a)\\1", "\\p{Alphabetic}", "\\pL", "a\\"}) {
    EXPECT_THAT(SplitPattern::Compile(pattern), StatusIs(kInvalidArgument)) << pattern;
  }
  EXPECT_THAT(SplitPattern::Compile("a*"), IsRefused("nothing"));
  EXPECT_THAT(SplitPattern::Compile("(a"), IsRefused("the pattern (a"));
}

TEST(SplitPattern, WaitsForWhatMayDecide) {
  using Result = SplitPattern::Matcher::Result;
  ASSERT_OK_AND_ASSIGN(const SplitPattern pattern, SplitPattern::Compile(kGpt2Pattern));
  SplitPattern::Matcher matcher(pattern);
  const auto find = [&](const std::string& text, bool is_whole) {
    return matcher.Find(text, 0, is_whole).value();
  };
  EXPECT_EQ(find("word", false), Result::kNeedsMore);
  EXPECT_EQ(find("word", true), Result::kFound);
  EXPECT_EQ(find("word ", false), Result::kFound);
  EXPECT_EQ(matcher.end(), 4);
  EXPECT_EQ(find("   ", false), Result::kNeedsMore);
  EXPECT_EQ(find("   x", false), Result::kFound);
  EXPECT_EQ(matcher.end(), 2);
  EXPECT_EQ(find("", true), Result::kNone);
}

// Applies the merge rule literally.
IdList MergedOneByOne(IdList symbols, const std::vector<std::array<int32_t, 3>>& merges) {
  while (true) {
    size_t rank = 0;
    const auto place = [&] {
      return std::search(symbols.begin(), symbols.end(), merges[rank].begin(),
                         merges[rank].begin() + 2);
    };
    while (rank < merges.size() && place() == symbols.end()) ++rank;
    if (rank == merges.size()) return symbols;
    const auto found = place();
    *found = merges[rank][2];
    symbols.erase(found + 1);
  }
}

TEST(BpeMerges, MergesTheLowestRankFirstAndTheLeftmostOfIt) {
  std::mt19937 random(4);
  BpeMerges::Scratch scratch;
  for (int round = 0; round < 300; ++round) {
    BpeMerges merges;
    std::vector<std::array<int32_t, 3>> list;
    for (int32_t next = 4; next < 24; ++next) {
      const auto draw = [&] {
        return static_cast<int32_t>(random() % static_cast<uint32_t>(next));
      };
      const std::array<int32_t, 3> merge = {draw(), draw(), next};
      const bool is_known = std::any_of(list.begin(), list.end(), [&](const auto& other) {
        return other[0] == merge[0] && other[1] == merge[1];
      });
      if (is_known) continue;
      merges.Add(merge[0], merge[1], static_cast<int32_t>(list.size()), next);
      list.push_back(merge);
    }
    IdList symbols(random() % 60);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random() % 4);
    const IdList expected = MergedOneByOne(symbols, list);
    merges.Apply(symbols, scratch);
    EXPECT_EQ(symbols, expected);
  }
}

}  // namespace
}  // namespace stagecoach::engine
