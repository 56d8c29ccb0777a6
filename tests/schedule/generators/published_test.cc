// The published numbers and closed forms: Zero Bubble paper (Qi et al. 2023), tables 5 and 9, and
// what follows from the orders. The metric is the span (simulate.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>

#include "schedule/generators/generators.h"
#include "schedule/simulate/simulate.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

struct PublishedRow {
  int p, m, v;
  double forward_ms, backward_ms, weight_ms, latency_ms;
  double one_f_one_b, interleaved, zb_h1, zb_h2;
};

constexpr PublishedRow kPublished[] = {
    {8, 24, 3, 18.522, 18.086, 9.337, .601, .2431, .1055, .1585, .1083},
    {8, 32, 3, 18.513, 18.086, 9.331, .626, .1985, .0818, .1242, .0837},
    {8, 64, 3, 18.546, 18.097, 9.321, .762, .1240, .0443, .0674, .0444},
    {16, 48, 3, 11.347, 11.248, 8.132, .377, .2552, .1104, .1397, .0672},
    {16, 64, 3, 11.307, 11.254, 8.101, .379, .2082, .0852, .1088, .0516},
    {16, 128, 3, 11.325, 11.308, 8.109, .378, .1251, .0445, .0576, .0266},
};

int64_t Nanoseconds(double ms) { return std::llround(1e6 * ms); }

double FourDigits(double value) { return std::round(1e4 * value) / 1e4; }

class Published : public ::testing::TestWithParam<PublishedRow> {
 protected:
  static double BubbleRate(const std::string& name) {
    const PublishedRow& row = GetParam();
    const DeviceTimes times{Nanoseconds(row.forward_ms), Nanoseconds(row.backward_ms),
                            Nanoseconds(row.weight_ms)};
    const Costs costs = LoopCosts(row.p, 1, times, Nanoseconds(row.latency_ms));
    return FourDigits(Simulate(Generate(name, {row.p, row.m}).value(), costs).value().bubble_rate);
  }
};

TEST_P(Published, OneFOneB) { EXPECT_EQ(BubbleRate("1f1b"), GetParam().one_f_one_b); }
TEST_P(Published, ZeroBubbleH1) { EXPECT_EQ(BubbleRate("zb-h1"), GetParam().zb_h1); }
TEST_P(Published, ZeroBubbleH2) { EXPECT_EQ(BubbleRate("zb-h2"), GetParam().zb_h2); }

// The published column is a closed form: without latency it is what the order yields, and every
// message on the path of the first and the last micro-batch adds its latency.
TEST_P(Published, InterleavedByItsClosedForm) {
  const PublishedRow& row = GetParam();
  const double device_ms = row.forward_ms + row.backward_ms + row.weight_ms;
  const DeviceTimes times{Nanoseconds(row.forward_ms), Nanoseconds(row.backward_ms),
                          Nanoseconds(row.weight_ms)};
  const Schedule schedule = Interleaved({row.p, row.m, row.v}).value();
  const int64_t span_ns =
      SimulateDurations(schedule, LoopCosts(row.p, row.v, times, 0)).value().span_ns;
  const double span_ms =
      static_cast<double>(span_ns) / 1e6 + (2 * row.p * row.v - row.p - 2) * row.latency_ms;
  EXPECT_EQ(FourDigits(1.0 - row.m * device_ms / span_ms), row.interleaved);
}

INSTANTIATE_TEST_SUITE_P(ZeroBubblePaper, Published, ::testing::ValuesIn(kPublished),
                         [](const auto& row) {
                           return "p" + std::to_string(row.param.p) + "m" +
                                  std::to_string(row.param.m);
                         });

// Random times of a device, divisible by every number of chunks up to 4.
class RandomTimes {
 public:
  DeviceTimes Next() { return {Draw(50, 150), Draw(50, 150), Draw(10, 150)}; }
  int64_t Draw(int min, int max) {
    return 12 * std::uniform_int_distribution<int64_t>(min, max)(random_);
  }

 private:
  std::mt19937 random_{7};
};

int64_t SpanNs(const Schedule& schedule, const DeviceTimes& times, int64_t latency_ns = 0) {
  const int p = schedule.num_ranks();
  const Costs costs = LoopCosts(p, schedule.num_stages() / p, times, latency_ns);
  return SimulateDurations(schedule, costs).value().span_ns;
}

int64_t DeviceNs(const DeviceTimes& t) {
  return t.forward_ns + t.backward_input_ns + t.backward_weight_ns;
}

// Calls body(p, m, times) for all shapes up to 16 ranks and 64 micro-batches, with different times
// for each.
template <typename Body>
void ForAllShapes(Body body) {
  RandomTimes random;
  for (int p = 1; p <= 16; ++p) {
    for (int m = 1; m <= 64; ++m) {
      const DeviceTimes times = random.Next();
      SCOPED_TRACE(::testing::Message()
                   << "p=" << p << " m=" << m << " F=" << times.forward_ns
                   << " B=" << times.backward_input_ns << " W=" << times.backward_weight_ns);
      body(p, m, times);
    }
  }
}

TEST(ClosedForm, GPipeAndOneFOneB) {
  ForAllShapes([](int p, int m, const DeviceTimes& times) {
    EXPECT_EQ(SpanNs(GPipe({p, m}).value(), times), (m + p - 1) * DeviceNs(times));
    EXPECT_EQ(SpanNs(OneFOneB({p, m}).value(), times), (m + p - 1) * DeviceNs(times));
  });
}

// Of looped BFS with at least as many micro-batches as ranks.
TEST(ClosedForm, InterleavedAndLoopedBfs) {
  ForAllShapes([](int p, int m, const DeviceTimes& times) {
    for (int v = 1; v <= 4; ++v) {
      SCOPED_TRACE(v);
      const int64_t expected = m * DeviceNs(times) + (p - 1) * DeviceNs(times) / v;
      if (m % p == 0) {
        EXPECT_EQ(SpanNs(Interleaved({p, m, v}).value(), times), expected);
      }
      if (m >= p) {
        EXPECT_EQ(SpanNs(LoopedBfs({p, m, v}).value(), times), expected);
      }
    }
  });
}

TEST(ClosedForm, ZeroBubbleH1WithWeightsNoLongerThanForward) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    times.backward_weight_ns = std::min(times.backward_weight_ns, times.forward_ns);
    if (m < p) return;
    EXPECT_EQ(SpanNs(ZeroBubbleH1({p, m}).value(), times),
              m * DeviceNs(times) + (p - 1) * (times.forward_ns + times.backward_input_ns -
                                               times.backward_weight_ns));
  });
}

TEST(ClosedForm, ZeroBubbleH2WithTwoMicroBatchesPerRank) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    times.backward_weight_ns =
        std::min({times.backward_weight_ns, times.forward_ns, times.backward_input_ns});
    if (m < 2 * p) return;
    EXPECT_EQ(SpanNs(ZeroBubbleH2({p, m}).value(), times),
              m * DeviceNs(times) + (p - 1) * (times.forward_ns + times.backward_input_ns -
                                               2 * times.backward_weight_ns));
  });
}

TEST(ClosedForm, ZeroBubbleVWithBackwardTheLongest) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    if (times.forward_ns > times.backward_input_ns) {
      std::swap(times.forward_ns, times.backward_input_ns);
    }
    times.backward_weight_ns = std::min(times.backward_weight_ns, times.forward_ns);
    if (m < 2 * p) return;
    EXPECT_EQ(SpanNs(ZeroBubbleV({p, m}).value(), times),
              m * DeviceNs(times) + (p - 1) * (times.backward_input_ns - times.backward_weight_ns));
  });
}

TEST(ClosedForm, ZeroBubbleVIsABoundWithForwardTheLongest) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    if (times.forward_ns < times.backward_input_ns) {
      std::swap(times.forward_ns, times.backward_input_ns);
    }
    times.backward_weight_ns = std::min(times.backward_weight_ns, times.backward_input_ns);
    if (m < 2 * p) return;
    EXPECT_LE(SpanNs(ZeroBubbleV({p, m}).value(), times),
              m * DeviceNs(times) + (p - 1) * (times.forward_ns - times.backward_weight_ns));
  });
}

// The published bubble is (p - 1) (FB + BW - 3 W), in times of a chunk. F and BW in one operation
// take their sum here; then every rank idles equally long.
TEST(ClosedForm, DualPipeVWithWeightsTheShortest) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    times.backward_weight_ns =
        std::min({times.backward_weight_ns, times.forward_ns, times.backward_input_ns});
    if (m < 2 * p) return;
    const int64_t f = times.forward_ns / 2;
    const int64_t b = times.backward_input_ns / 2;
    const int64_t w = times.backward_weight_ns / 2;
    const int64_t published = f + (b + w) + (std::max(f, b) + w) - 3 * w;
    const int64_t less = f < b ? std::min(f, (p - 1) * (b - f)) : 0;
    EXPECT_EQ(SpanNs(DualPipeV({p, m}).value(), times),
              m * DeviceNs(times) + (p - 1) * published - less);
  });
}

TEST(ClosedForm, ZeroBubbleWithFewMicroBatches) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    times.backward_weight_ns =
        std::min({times.backward_weight_ns, times.forward_ns, times.backward_input_ns});
    if (m > p) return;
    const int64_t expected =
        (m + p - 1) * (times.forward_ns + times.backward_input_ns) + times.backward_weight_ns;
    EXPECT_EQ(SpanNs(ZeroBubbleH1({p, m}).value(), times), expected);
    EXPECT_EQ(SpanNs(ZeroBubbleH2({p, m}).value(), times), expected);
  });
}

// Most tools miss this: latency costs 1F1B more the more micro-batches there are.
TEST(ClosedForm, LatencyOfOneFOneBGrowsWithTheMicroBatches) {
  ForAllShapes([](int p, int m, const DeviceTimes& times) {
    if (p == 1 || m % p != 0) return;
    const int64_t c = std::min(times.forward_ns, times.backward_input_ns) / 2;
    EXPECT_EQ(SpanNs(OneFOneB({p, m}).value(), times, c),
              (m + p - 1) * DeviceNs(times) + c * (2 * (p - 1) * m / p + 2 * (p - 2)));
  });
}

TEST(ClosedForm, LatencyOfZeroBubbleH1DoesNot) {
  ForAllShapes([](int p, int m, DeviceTimes times) {
    times.backward_weight_ns =
        std::min({times.backward_weight_ns, times.forward_ns, times.backward_input_ns});
    if (m % p != 0 || m < 2 * p) return;
    const int64_t c = times.backward_weight_ns / 2;
    EXPECT_EQ(
        SpanNs(ZeroBubbleH1({p, m}).value(), times, c),
        m * DeviceNs(times) + 4 * (p - 1) * c +
            (p - 1) * (times.forward_ns + times.backward_input_ns - times.backward_weight_ns));
  });
}

// With equal passes, the bubbles of 1F1B shrink to about a half and about two thirds.
TEST(VHalfAndVMin, HaveAboutHalfAndTwoThirdsOfTheBubbleOfOneFOneB) {
  const DeviceTimes times{1000, 1000, 1000};
  for (int p = 4; p <= 16; ++p) {
    SCOPED_TRACE(p);
    const auto bubble_ns = [&](const absl::StatusOr<Schedule>& schedule) {
      return static_cast<double>(SpanNs(schedule.value(), times) - 4 * p * DeviceNs(times));
    };
    const double one_f_one_b = bubble_ns(OneFOneB({p, 4 * p}));
    const double half = bubble_ns(VHalf({p, 4 * p})) / one_f_one_b;
    const double least = bubble_ns(VMin({p, 4 * p})) / one_f_one_b;
    EXPECT_TRUE(half > 0.45 && half < 0.65) << half;
    EXPECT_TRUE(least > 0.55 && least < 0.75) << least;
  }
}

}  // namespace
}  // namespace stagecoach::schedule
