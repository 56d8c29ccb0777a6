#ifndef STAGECOACH_TOOLS_BENCH_BENCH_CASE_H_
#define STAGECOACH_TOOLS_BENCH_BENCH_CASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::tools {

// What one row of a bench trains, and how.
struct BenchCase {
  std::string model;  // name or file, as --model has it
  std::string precision = "fp32";
  int devices = 1;  // of each replica
  int replicas = 1;
  std::string schedule = "1f1b";
  int micro_batches = 1;  // of all replicas
  int64_t batch = 1;      // rows, of all replicas
  int threads = 1;        // of each device

  int all_devices() const { return devices * replicas; }

  friend bool operator==(const BenchCase&, const BenchCase&) = default;
};

// A property of cases: a column of a table, or a part of a name.
struct BenchProperty {
  std::string name;
  bool is_text = false;                                      // and not a number
  std::function<std::string(const BenchCase&)> of = {};      // "2"
  std::function<std::string(const BenchCase&)> phrase = {};  // "2 devices"
};
// Those of model, precision, schedule, devices, replicas, micro-batches, batch and threads in which
// the cases differ; schedule, devices and micro-batches anyway.
std::vector<BenchProperty> PropertiesOf(absl::Span<const BenchCase> cases);

// "1f1b, 2 devices, 8 micro-batches".
std::string Describe(const BenchCase& what, absl::Span<const BenchProperty> properties);
// All properties.
std::string ToString(const BenchCase& what);
// Those that the cases have in common, but for the three that always differ or are shown anyway:
// "default, fp32, 1 replica, batch 512, 1 thread".
std::string CommonOf(absl::Span<const BenchCase> cases);

// How the batch follows the number of devices.
enum class BenchScaling : uint8_t {
  kStrong,  // it stays
  kWeak,    // as many rows and micro-batches for each device
};

// Whether a number of devices is all that the two differ in, but for schedules and how devices are
// divided among stages and replicas: under kWeak, rows and micro-batches are as many for each
// device.
bool AreSameWork(const BenchCase& a, const BenchCase& b, BenchScaling scaling);

// All combinations of these; none is empty.
struct BenchGrid {
  std::vector<std::string> models, precisions = {"fp32"};
  std::vector<int> devices, replicas = {1};
  std::vector<std::string> schedules;
  std::vector<int> micro_batches;  // under kWeak: of the fewest devices
  std::vector<int64_t> batches;    // likewise
  int threads = 1;
  BenchScaling scaling = BenchScaling::kStrong;
  // Schedule files are for so many devices and micro-batches of each replica, whatever the lists
  // say; by name.
  struct Shape {
    int devices = 1, micro_batches = 1;
  };
  std::map<std::string, Shape> files = {};
};

// Models first, then precisions, devices, replicas, schedules, micro-batches, batches, in their
// order. One device without replicas has no schedule to compare: of that, the first alone.
// InvalidArgument: under kWeak, a batch or a number of micro-batches that would not be whole, or
// exceeds its limit.
absl::StatusOr<std::vector<BenchCase>> CasesOf(const BenchGrid& grid);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_BENCH_CASE_H_
