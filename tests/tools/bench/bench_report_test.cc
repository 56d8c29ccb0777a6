#include "tools/bench/bench_report.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/bench/sample_results.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

BenchResults Sample() {
  return SampleResults({SampleRow("1f1b", 1, {200}), SampleRow("1f1b", 2, {100, 110, 95}),
                        SampleRow("zb-v", 2, {80}), BrokenRow("gpipe")});
}

TEST(BenchTable, ShowsWhatDiffersAndTheFastest) {
  EXPECT_EQ(
      ToTable(Sample(), /*shows_scaling=*/false),
      "Abacus, 2 processors, avx2, 16.0 GB, NVIDIA H200; stagecoach 0.1.0, oneDNN 2.6.3, compiler "
      "12.2.0; 2026-11-26\n"
      "--layers 8\n"
      "default, fp32, 1 replica, batch 64, 1 thread\n"
      "\n"
      "schedule devices micro-batches     step, ms samples/s of peak predicted bubble\n"
      "-------- ------- ------------- ------------ --------- ------- --------- ------\n"
      "1f1b           1             8  200 ± 0.0 %       320  25.0 %   -55.0 % 25.0 %\n"
      "1f1b           2             8 100 ± 10.0 %       640  50.0 %   -10.0 % 25.0 %\n"
      "zb-v *         2             8   80 ± 0.0 %       800  62.5 %   +12.5 % 25.0 %\n"
      "gpipe          2             8            -         -       -         -      -\n"
      "\n"
      "default, fp32, gpipe, 2 devices, 1 replica, 8 micro-batches, batch 64, 1 thread: it needs "
      "\"more\", always\n");
}

TEST(BenchTable, ShowsTheFastestOfEachModelByTheNameOfItsFile) {
  BenchResults results = SampleResults({SampleRow("1f1b", 2, {100}), SampleRow("zb-v", 2, {200}),
                                        SampleRow("1f1b", 2, {400}), SampleRow("zb-v", 2, {300})});
  for (size_t i = 0; i < 4; ++i) results.rows[i].what.model = i < 2 ? "a/net.toml" : "b/net.toml";
  EXPECT_THAT(
      ToTable(results, /*shows_scaling=*/false),
      AllOf(HasSubstr("\nnet.toml 1f1b *         2"), HasSubstr("\nnet.toml zb-v           2"),
            HasSubstr("\nnet.toml 1f1b           2"), HasSubstr("\nnet.toml zb-v *         2")));
}

TEST(BenchTable, ShowsSpeedUpAndEfficiencyOfScaling) {
  EXPECT_THAT(ToTable(Sample(), /*shows_scaling=*/true),
              AllOf(HasSubstr("of peak speed-up efficiency\n"),
                    HasSubstr("640  50.0 %     2.00    100.0 %\n"),
                    HasSubstr("800  62.5 %     2.50    125.0 %\n"), Not(HasSubstr("bubble"))));
}

TEST(BenchTable, OfNothingIsTheMachine) {
  EXPECT_THAT(ToTable(SampleResults({}), false), HasSubstr("Abacus"));
}

TEST(BenchTable, TellsIfTheMachineWasBusy) {
  BenchResults results = Sample();
  EXPECT_THAT(ToTable(results, false), Not(HasSubstr("other programs")));
  results.rows[1].other_load = 0.2;
  EXPECT_THAT(ToTable(results, false),
              HasSubstr("\n\nother programs took 20 % of the processors meanwhile\n"));
}

TEST(BenchTable, CountsTokens) {
  BenchRow row = SampleRow("1f1b", 2, {100});
  row.tokens = 100;
  row.peak_flops = row.predicted_step_ms = 0;
  EXPECT_THAT(ToTable(SampleResults({row}), false),
              AllOf(HasSubstr(" tokens/s "), HasSubstr("   64,000       -         - 25.0 %\n")));
}

TEST(Baseline, IsOfTheFewestDevicesOfTheSameWork) {
  BenchResults results = Sample();
  EXPECT_EQ(BaselineOf(results, results.rows[1]), &results.rows[0]);
  EXPECT_EQ(BaselineOf(results, results.rows[2]), &results.rows[0]);  // one device has no schedule
  EXPECT_EQ(BaselineOf(results, results.rows[3]), nullptr);
  results.rows[0].what.precision = "bf16";
  EXPECT_EQ(BaselineOf(results, results.rows[1]), &results.rows[1]);
  results.rows[0] = SampleRow("gpipe", 2, {1});
  EXPECT_EQ(BaselineOf(results, results.rows[1]), &results.rows[1]);
}

TEST(BenchCsv, HasAllFiguresOfEachRow) {
  const std::vector<std::string> lines = absl::StrSplit(ToCsv(Sample()), '\n');
  ASSERT_EQ(lines.size(), 6);
  EXPECT_EQ(lines[0],
            "model,precision,devices,replicas,schedule,microbatches,batch,threads_per_device,steps,"
            "step_ms,step_ms_low,step_ms_high,predicted_step_ms,samples_per_second,"
            "tokens_per_second,peak_share,bubble,predicted_bubble,peak_bytes,predicted_peak_bytes,"
            "sent_bytes,predicted_sent_bytes,error");
  EXPECT_EQ(lines[2],
            "default,fp32,2,1,1f1b,8,64,1,3,100,95,110,90,640,,0.5,0.25,0.125,2000000,2000000,1000,"
            "1000,");
  EXPECT_EQ(lines[4],
            "default,fp32,2,1,gpipe,8,64,1,,,,,,,,,,,,,,,\"it needs \"\"more\"\", always\"");
}

TEST(BenchPage, HasTableBarsAndAPlotOfScaling) {
  const std::string page = ToHtml(Sample());
  EXPECT_THAT(page, AllOf(HasSubstr("<title>Throughput</title>"), HasSubstr("<th>speed-up</th>"),
                          HasSubstr(">zb-v, 2 devices, 8 micro-batches</text>"),
                          HasSubstr("aria-label=\"throughput over devices\""),
                          HasSubstr("it needs &quot;more&quot;, always")));
  const std::string alone = ToHtml(SampleResults({SampleRow("1f1b", 2, {100})}));
  EXPECT_THAT(alone, AllOf(HasSubstr("aria-label=\"throughput of each row\""),
                           Not(HasSubstr("throughput over devices"))));
}

TEST(BenchPage, IsTextWhateverTheNamesAre) {
  BenchResults results = Sample();
  for (BenchRow& row : results.rows) row.what.model = "<b>&\"";
  results.rows[0].what.schedule = "<script>";
  results.options = "<i>";
  const std::string page = ToHtml(results);
  for (const char* markup : {"<b>", "<script>", "<i>"}) {
    EXPECT_FALSE(absl::StrContains(page, markup)) << markup;
  }
}

}  // namespace
}  // namespace stagecoach::tools
