#include "tools/stagecoach/bench/bench_report.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/bench/sample_results.h"
#include "tools/stagecoach/bench/scaling_plot.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

BenchResults Sample() {
  return SampleResults({SampleRow("1f1b", 1, {200}), SampleRow("1f1b", 2, {100, 110, 95}),
                        SampleRow("zb-v", 2, {80}), BrokenRow("gpipe")});
}

TEST(BenchTable, ShowsWhatDiffersAndTheFastest) {
  EXPECT_EQ(
      ToTable(Sample(), /*scaling=*/std::nullopt),
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
      ToTable(results, /*scaling=*/std::nullopt),
      AllOf(HasSubstr("\nnet.toml 1f1b *         2"), HasSubstr("\nnet.toml zb-v           2"),
            HasSubstr("\nnet.toml 1f1b           2"), HasSubstr("\nnet.toml zb-v *         2")));
}

TEST(BenchTable, ShowsSpeedUpAndEfficiencyOfScaling) {
  EXPECT_THAT(ToTable(Sample(), BenchScaling::kStrong),
              AllOf(HasSubstr("of peak speed-up efficiency\n"),
                    HasSubstr("640  50.0 %     2.00    100.0 %\n"),
                    HasSubstr("800  62.5 %     2.50    125.0 %\n"), Not(HasSubstr("bubble"))));
}

TEST(BenchTable, OfNothingIsTheMachine) {
  EXPECT_THAT(ToTable(SampleResults({}), std::nullopt), HasSubstr("Abacus"));
}

TEST(BenchTable, TellsIfTheMachineWasBusy) {
  BenchResults results = Sample();
  EXPECT_THAT(ToTable(results, std::nullopt), Not(HasSubstr("other programs")));
  results.rows[1].other_load = 0.2;
  EXPECT_THAT(ToTable(results, std::nullopt),
              HasSubstr("\n\nother programs took 20 % of the processors meanwhile\n"));
}

TEST(BenchTable, CountsTokens) {
  BenchRow row = SampleRow("1f1b", 2, {100});
  row.tokens = 100;
  row.peak_flops = row.predicted_step_ms = 0;
  EXPECT_THAT(ToTable(SampleResults({row}), std::nullopt),
              AllOf(HasSubstr(" tokens/s "), HasSubstr("   64,000       -         - 25.0 %\n")));
}

TEST(Baseline, IsOfTheFewestDevicesOfTheSameWork) {
  const auto baseline_of = [](const BenchResults& results, size_t row) {
    return BaselineOf(results, results.rows[row], BenchScaling::kStrong);
  };
  BenchResults results = Sample();
  EXPECT_EQ(baseline_of(results, 1), &results.rows[0]);
  EXPECT_EQ(baseline_of(results, 2), &results.rows[0]);  // one device has no schedule
  EXPECT_EQ(baseline_of(results, 3), nullptr);
  for (const auto& change : std::vector<void (*)(BenchCase&)>{
           [](BenchCase& what) { what.model = "other"; },
           [](BenchCase& what) { what.precision = "bf16"; },
           [](BenchCase& what) { what.threads = 2; }, [](BenchCase& what) { what.batch = 128; },
           [](BenchCase& what) { what.micro_batches = 4; },
           [](BenchCase& what) { what.devices = 2, what.schedule = "gpipe"; }}) {
    BenchResults other = Sample();
    change(other.rows[0].what);
    EXPECT_EQ(baseline_of(other, 1), &other.rows[1]);
  }
}

TEST(Baseline, HasAsMuchForEachDeviceUnderWeakScaling) {
  BenchResults results = Sample();
  const auto baseline = [&] { return BaselineOf(results, results.rows[1], BenchScaling::kWeak); };
  EXPECT_EQ(baseline(), &results.rows[1]);
  results.rows[0].what.batch = 32;
  EXPECT_EQ(baseline(), &results.rows[1]);
  results.rows[0].what.micro_batches = 4;
  EXPECT_EQ(baseline(), &results.rows[0]);
}

// Returns the points of the page's polylines.
std::vector<std::string> PolylinesOf(const std::string& page) {
  std::vector<std::string> lines;
  for (const absl::string_view part : absl::StrSplit(page, "points=\"")) {
    lines.emplace_back(part.substr(0, part.find('"')));
  }
  lines.erase(lines.begin());
  return lines;
}

TEST(ScalingPlot, HasALineForEachWork) {
  BenchResults results = Sample();
  EXPECT_THAT(PolylinesOf(ScalingPlot(results, BenchScaling::kStrong)), SizeIs(2));
  for (size_t i = 0; i < 3; ++i) {
    BenchRow row = results.rows[i];
    row.what.batch *= 2;
    results.rows.push_back(row);
  }
  const std::string plot = ScalingPlot(results, BenchScaling::kStrong);
  EXPECT_THAT(PolylinesOf(plot), SizeIs(4));
  EXPECT_THAT(plot, AllOf(HasSubstr(">1f1b, 8 micro-batches, batch 64</text>"),
                          HasSubstr(">zb-v, 8 micro-batches, batch 128</text>")));
  EXPECT_EQ(ScalingPlot(results, BenchScaling::kWeak), "");
  for (BenchRow& row : results.rows) std::swap(row.what.devices, row.what.replicas);
  EXPECT_EQ(PolylinesOf(ScalingPlot(results, BenchScaling::kStrong)), PolylinesOf(plot));
}

TEST(ScalingPlot, HasLinesOfTheirOwnForReplicasBesideStages) {
  BenchResults results = SampleResults({SampleRow("1f1b", 1, {100}), SampleRow("1f1b", 2, {50}),
                                        SampleRow("1f1b", 1, {60}), SampleRow("1f1b", 2, {30})});
  results.rows[2].what.replicas = results.rows[3].what.replicas = 2;
  EXPECT_THAT(ScalingPlot(results, BenchScaling::kStrong),
              AllOf(HasSubstr(">1f1b, 1 replica, 8 micro-batches</text>"),
                    HasSubstr(">1f1b, 2 replicas, 8 micro-batches</text>")));
}

TEST(BenchCsv, HasAllFiguresOfEachRow) {
  const std::vector<std::string> lines = absl::StrSplit(ToCsv(Sample()), '\n');
  ASSERT_EQ(lines.size(), 6);
  EXPECT_EQ(
      lines[0],
      "model,precision,devices,replicas,schedule,micro_batches,batch,threads_per_device,steps,"
      "step_ms,step_ms_low,step_ms_high,predicted_step_ms,samples_per_second,"
      "tokens_per_sample,tokens_per_second,flops,peak_flops_per_second,peak_share,bubble,"
      "predicted_bubble,other_load,peak_bytes,predicted_peak_bytes,sent_bytes,"
      "predicted_sent_bytes,error");
  EXPECT_EQ(lines[2],
            "default,fp32,2,1,1f1b,8,64,1,3,100,95,110,90,640,,,50000000,1000000000,0.5,0.25,0.125,"
            "0,2000000,2000000,1000,1000,");
  EXPECT_EQ(lines[4],
            "default,fp32,2,1,gpipe,8,64,1,,,,,,,,,,,,,,,,,,,\"it needs \"\"more\"\", always\"");
}

TEST(BenchPage, HasTableBarsAndAPlotOfScaling) {
  const std::string page = ToHtml(Sample(), BenchScaling::kStrong);
  EXPECT_THAT(page, AllOf(HasSubstr("<title>Throughput</title>"), HasSubstr("<th>speed-up</th>"),
                          HasSubstr(">zb-v, 2 devices, 8 micro-batches</text>"),
                          HasSubstr("aria-label=\"throughput over devices\""),
                          HasSubstr("it needs &quot;more&quot;, always"),
                          // The table thus fits a page of 1,280 pixels.
                          HasSubstr(".scroll th,.scroll td:last-child{white-space:normal")));
  const std::string alone =
      ToHtml(SampleResults({SampleRow("1f1b", 2, {100})}), BenchScaling::kStrong);
  EXPECT_THAT(alone, AllOf(HasSubstr("aria-label=\"throughput of each row\""),
                           Not(HasSubstr("throughput over devices"))));
}

TEST(BenchPage, IsTextWhateverTheNamesAre) {
  BenchResults results = Sample();
  for (BenchRow& row : results.rows) row.what.model = "<b>&\"";
  results.rows[0].what.schedule = "<script>";
  results.options = "<i>";
  const std::string page = ToHtml(results, BenchScaling::kStrong);
  for (const char* markup : {"<b>", "<script>", "<i>"}) {
    EXPECT_FALSE(absl::StrContains(page, markup)) << markup;
  }
}

}  // namespace
}  // namespace stagecoach::tools
