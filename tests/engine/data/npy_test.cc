#include "engine/data/npy.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/token_files.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using absl::StatusCode::kDataLoss;
using ::stagecoach::testing::IsRefused;
using ::testing::ElementsAre;
using testing::StatusIs;

constexpr char kGoodHeader[] = "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }";

TEST(ParseNpy, ReadsTheHeaderOfEveryVersion) {
  for (const int version : {1, 2, 3}) {
    const std::string contents = NpyFile(kGoodHeader, "abcdef", version);
    ASSERT_OK_AND_ASSIGN(const NpyArray array, ParseNpy("a.npy", contents));
    EXPECT_EQ(array.type, "<u2");
    EXPECT_THAT(array.shape, ElementsAre(3));
    EXPECT_FALSE(array.is_fortran);
    EXPECT_EQ(array.count, 3);
    EXPECT_EQ(array.elements, "abcdef");
  }
}

TEST(ParseNpy, TakesKeysInAnyOrderAndAnySpaces) {
  for (const char* header : {"{\"shape\": (3,), \"descr\": \"<u2\", \"fortran_order\": True}",
                             "{ 'shape' : ( 3 , ) ,'fortran_order':False,'descr':'<u2' , }"}) {
    const std::string contents = NpyFile(header, "");
    ASSERT_OK_AND_ASSIGN(const NpyArray array, ParseNpy("a.npy", contents));
    EXPECT_EQ(array.type, "<u2");
    EXPECT_EQ(array.count, 3);
  }
}

TEST(ParseNpy, RefusesWhatIsCutShort) {
  const std::string contents = NpyFile(kGoodHeader, "");
  for (size_t size = 6; size < contents.size(); ++size) {
    EXPECT_THAT(ParseNpy("a.npy", contents.substr(0, size)),
                StatusIs(kDataLoss, "the file is truncated"));
  }
  for (size_t size = 0; size < 6; ++size) {
    EXPECT_THAT(ParseNpy("a.npy", contents.substr(0, size)), IsRefused("not a .npy file"));
  }
}

TEST(ParseNpy, RefusesOtherVersions) {
  for (const int version : {0, 4}) {
    EXPECT_THAT(ParseNpy("a.npy", NpyFile(kGoodHeader, "", version)),
                IsRefused(absl::StrCat("version ", version, ".0")));
  }
  std::string minor = NpyFile(kGoodHeader, "");
  minor[7] = 1;
  EXPECT_THAT(ParseNpy("a.npy", minor), IsRefused("version 1.1"));
}

TEST(ParseNpy, ReadsShapesOfAnyRank) {
  struct Case {
    const char* shape;
    std::vector<int64_t> dims;
    int64_t count;
  };
  for (const Case& c : {Case{"()", {}, 1},
                        {"(7,)", {7}, 7},
                        {"(2, 3)", {2, 3}, 6},
                        {"(4611686018427387904, 3, 0)", {int64_t{1} << 62, 3, 0}, 0},
                        {"(4294967296, 4294967296)",
                         {int64_t{1} << 32, int64_t{1} << 32},
                         std::numeric_limits<int64_t>::max()}}) {
    const std::string contents = NpyFile(
        absl::StrCat("{'descr': '<u2', 'fortran_order': True, 'shape': ", c.shape, "}"), "");
    ASSERT_OK_AND_ASSIGN(const NpyArray array, ParseNpy("a.npy", contents));
    EXPECT_EQ(array.shape, c.dims);
    EXPECT_EQ(array.count, c.count);
    EXPECT_TRUE(array.is_fortran);
    EXPECT_EQ(NpyShape(array.shape), c.shape);
  }
}

TEST(ParseNpy, RefusesMalformedHeaders) {
  for (const char* header :
       {"", "{", "{}", "[]", "{'descr'}", "{'descr': }", "{'descr': ''}", "{'descr': '<u2}",
        "{'descr': '<u2', 'fortran_order': False}", "{'descr': '<u2', 'shape': (3,)}",
        "{'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<u2', 'fortran_order': 0, 'shape': (3,)}",
        "{'descr': '<u2' 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (3 3)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': [3]}",
        "{'descr': '<u2', 'fortran_order': False, 'shape': (3,)} x",
        "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (3,)}"}) {
    EXPECT_THAT(ParseNpy("a.npy", NpyFile(header, "")), IsRefused("malformed header"));
  }
  for (const char* key : {"'descr': '<u2'", "'shape': (3,)", "'fortran_order': False", "'x': 1"}) {
    std::string header = kGoodHeader;
    header.insert(header.size() - 1, key);
    EXPECT_THAT(ParseNpy("a.npy", NpyFile(header, "")), IsRefused("is not known, or there twice"));
  }
}

TEST(ParseNpy, RefusesAHeaderWithoutALineEnd) {
  std::string contents = NpyFile(kGoodHeader, "");
  contents.back() = ' ';
  EXPECT_THAT(ParseNpy("a.npy", contents), IsRefused("a line end"));
}

}  // namespace
}  // namespace stagecoach::engine
