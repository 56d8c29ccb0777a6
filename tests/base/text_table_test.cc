#include "base/text/text_table.h"

#include <gtest/gtest.h>

#include <string>

namespace stagecoach::base {
namespace {

using Align = TextTable::Align;

TEST(TextTable, PadsColumnsToTheirWidestCell) {
  TextTable table({{"stage", Align::kRight}, {"memory"}, {"note"}});
  table.AddRow({"0", "390.2 MB", "fits"});
  table.AddRow({"10", "1 GB", "does not fit"});
  EXPECT_EQ(table.ToString(),
            "stage  memory    note\n"
            "-----  --------  ------------\n"
            "    0  390.2 MB  fits\n"
            "   10  1 GB      does not fit\n");
}

TEST(TextTable, WithoutRowsPrintsTheHeader) {
  EXPECT_EQ(TextTable({{"a"}, {"bc"}}).ToString(), "a  bc\n-  --\n");
}

TEST(TextTable, CountsCodePointsAndNotBytes) {
  TextTable table({{"Zeit", Align::kRight}, {"x"}});
  table.AddRow({"12 µs", "1"});
  table.AddRow({"123 s", "2"});
  EXPECT_EQ(table.ToString(),
            " Zeit  x\n"
            "-----  -\n"
            "12 µs  1\n"
            "123 s  2\n");
}

TEST(TextTable, ShowsNamesThatWouldSteerATerminal) {
  TextTable table({{"a\x1b[2J"}, {"b"}});
  table.AddRow({"two\nlines", "\x1b]0;x\x07\xff"});
  EXPECT_EQ(table.ToString(),
            "a\\x1b[2J    b\n"
            "----------  ----------------\n"
            "two\\nlines  \\x1b]0;x\\x07\\xff\n");
}

TEST(TextTable, LeavesNoTrailingSpaces) {
  TextTable table({{"a"}, {"long header"}});
  table.AddRow({"1", ""});
  EXPECT_EQ(table.ToString().find(" \n"), std::string::npos);
}

TEST(TextTable, NarrowsGapsAndThenNamesButNoNumbers) {
  TextTable table({{"layer"}, {"parameters", Align::kRight}, {"what"}});
  table.AddRow({"block.12.µattention.output", "123456789", "a"});
  EXPECT_EQ(table.ToString(44), table.ToString());
  EXPECT_EQ(table.ToString(42),
            "layer                      parameters what\n"
            "-------------------------- ---------- ----\n"
            "block.12.µattention.output  123456789 a\n");
  EXPECT_EQ(table.ToString(31),
            "layer           parameters what\n"
            "--------------- ---------- ----\n"
            "block.1….output  123456789 a\n");
  EXPECT_EQ(table.ToString(1),
            "layer        parameters what\n"
            "------------ ---------- ----\n"
            "block…output  123456789 a\n");
}

TEST(TextTableDeathTest, RefusesARowOfTheWrongLength) {
  TextTable table({{"a"}, {"b"}});
  EXPECT_DEATH(table.AddRow({"1"}), "a row of 1 cells in a table of 2 columns");
}

}  // namespace
}  // namespace stagecoach::base
