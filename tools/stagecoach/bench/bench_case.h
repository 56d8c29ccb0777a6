#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_CASE_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_CASE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::tools {

// The training that one row of a bench measures.
struct BenchCase {
  std::string model;  // name or file, as in --model
  std::string precision = "fp32";
  int devices = 1;  // of each replica
  int replicas = 1;
  std::string schedule = "1f1b";
  int micro_batches = 1;  // of all replicas
  int64_t batch = 1;      // samples, of all replicas
  int threads = 1;        // of each device; 0: those that --cluster says

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
// Returns those of model, precision, schedule, devices, replicas, micro-batches, batch and threads
// in which the cases differ, and always schedule, devices and micro-batches.
std::vector<BenchProperty> PropertiesOf(absl::Span<const BenchCase> cases);

// Returns "1f1b, 2 devices, 8 micro-batches".
std::string Describe(const BenchCase& what, absl::Span<const BenchProperty> properties);
// Returns all properties.
std::string ToString(const BenchCase& what);
// Returns those that the cases have in common, except for the three that always differ or are shown
// anyway: "default, fp32, 1 replica, batch 512, 1 thread".
std::string CommonOf(absl::Span<const BenchCase> cases);

// How the batch depends on the number of devices.
enum class BenchScaling : uint8_t {
  kStrong,  // it stays the same
  kWeak,    // the same samples and micro-batches for each device
};

// Returns whether the two differ only in the number of devices, apart from schedules and how
// devices are divided among stages and replicas; under kWeak, samples and micro-batches are equal
// per device.
bool AreSameWork(const BenchCase& a, const BenchCase& b, BenchScaling scaling);

// All combinations of these values; no list is empty.
struct BenchGrid {
  std::vector<std::string> models, precisions = {"fp32"};
  std::vector<int> devices, replicas = {1};
  std::vector<std::string> schedules;
  std::vector<int> micro_batches;  // under kWeak: for the fewest devices
  std::vector<int64_t> batches;    // likewise
  int threads = 1;
  BenchScaling scaling = BenchScaling::kStrong;
  // The devices and micro-batches of each replica that a schedule file is for, whatever the lists
  // say; by name.
  struct Shape {
    int devices = 1, micro_batches = 1;
  };
  std::map<std::string, Shape> files = {};
};

// Returns the cases: models first, then precisions, devices, replicas, schedules, micro-batches,
// batches, in their order. One device without replicas has no schedule to compare, so only the
// first is kept. InvalidArgument: under kWeak, a batch or a number of micro-batches that would not
// be whole, or exceeds its limit.
absl::StatusOr<std::vector<BenchCase>> CasesOf(const BenchGrid& grid);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_CASE_H_
