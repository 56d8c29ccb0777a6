#ifndef STAGECOACH_TESTS_KERNELS_OPS_OP_HARNESS_H_
#define STAGECOACH_TESTS_KERNELS_OPS_OP_HARNESS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops/ops.h"
#include "kernels/tensor.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"

// Tests of operations, written once for every backend: a test says what is called, what the result
// is and how far from it the operation may be; the harness calls it on each backend of the test
// program, and in each of its variants, which must all produce the same bits.
//
//   using SwiGlu = OpTest<SwiGluShape>;
//   TEST_P(SwiGlu, Forward) {
//     const std::vector<float> x = Rounded(RandomNormal(...));
//     const auto [z, y] = Results([&](OpBench& bench) { ...; return std::array{z, y}; });
//     EXPECT_THAT(y, Near(expected, bounds));
//   }
//   INSTANTIATE_OP_TEST(SwiGlu, NameOf, SwiGluShape{3, 7}, ...);
//
// The same test file is part of a program for CPU devices and of one for CUDA devices: emulated
// ones, or a GPU.
namespace stagecoach::testing {

// One way of running the operations of a backend.
struct OpVariant {
  std::string name;
  std::function<std::unique_ptr<kernels::Device>()> create_device;
  // True if operands and results are unaligned in tests of operations that produce the same bits at
  // any address.
  bool unaligned = false;
};

// The addresses of tensors of the activation type: aligned for anything; or one element beyond that
// in some of the variants, or in all of them.
enum class Addresses : uint8_t { kAligned, kAny, kUnaligned };

// A kind of device, with all its variants.
struct OpBackend {
  std::string name;  // part of the tests' names
  kernels::Precision precision = kernels::Precision::kFloat32;
  // Returns Unavailable with the reason if tests are skipped on this machine.
  std::function<absl::Status()> available;
  std::vector<OpVariant> variants;
  // How operations sum `terms` numbers along a row: a lane or thread sums at most `share` of them,
  // and a term undergoes at most `roundings` roundings in all.
  struct RowSum {
    int64_t share, roundings;
  };
  RowSum (*row_sum)(int64_t terms) = nullptr;
  bool is_cpu = false;

  kernels::DType type() const { return kernels::ActivationType(precision); }
  friend void PrintTo(const OpBackend& backend, std::ostream* out) { *out << backend.name; }
};

// Returns the backends of the test program.
std::vector<OpBackend> OpBackends();
// Returns the backends for operations that are made of products: also those whose products have
// another precision.
std::vector<OpBackend> ProductBackends();

// A device with the memory of one run. Operands hold values; results and workspaces hold bytes
// 0xFF, which read as NaN, so that an operation that reads what it should write is detected. Every
// tensor has its own memory: the destructor fails the test if an operation wrote beyond its end.
class OpBench {
 public:
  explicit OpBench(const OpVariant& variant, Addresses addresses = Addresses::kAligned);
  ~OpBench();
  OpBench(const OpBench&) = delete;
  OpBench& operator=(const OpBench&) = delete;

  kernels::Device& device() { return *device_; }
  kernels::Ops& ops() { return device_->ops(); }
  // Creates an operation, which must succeed. It lives as long as this.
  template <typename Shape>
  typename Shape::Op& Create(const Shape& shape) {
    auto op = ops().Create(shape);
    CheckCreated(op.status());
    typename Shape::Op& created = **op;
    operations_.push_back(*std::move(op));
    return created;
  }

  // Returns the shape of images in the device's order. Values, and numbers that are read, always
  // have the channels first.
  kernels::Shape Images(const kernels::Shape& shape) {
    return shape.InOrder(device_->image_order());
  }
  // Create tensors of the device's activation type.
  kernels::Tensor Operand(const kernels::Shape& shape, absl::Span<const float> values);
  kernels::Tensor Result(const kernels::Shape& shape);
  // Create tensors of a type of their own.
  kernels::Tensor Floats(const kernels::Shape& shape, absl::Span<const float> values);
  kernels::Tensor Integers(const kernels::Shape& shape, absl::Span<const int32_t> values);
  kernels::Tensor ResultOf(kernels::DType type, const kernels::Shape& shape);
  // Creates what is accumulated, or else overwritten: float32 sums such as gradients of weights.
  kernels::Tensor Sums(const kernels::Shape& shape, absl::Span<const float> values,
                       bool accumulate) {
    return accumulate ? Floats(shape, values) : ResultOf(kernels::DType::kFloat32, shape);
  }
  std::byte* Workspace(int64_t bytes);
  // Copies a plain value, or several, into the device's memory.
  template <typename T>
  T* Place(const T& value) {
    return PlaceAll<T>({&value, 1});
  }
  template <typename T>
  T* PlaceAll(absl::Span<const T> values) {
    return reinterpret_cast<T*>(
        Copied({reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)}));
  }

  // Runs `work` as a job of the device's stream and waits for it; both must succeed.
  void Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work);

  std::vector<std::byte> Bytes(const kernels::Tensor& tensor);

 private:
  struct Guarded {
    kernels::Buffer buffer;
    int64_t bytes;  // with the offset, without the guard
  };
  // Contents that the next run must write first, all with one wait.
  struct Contents {
    std::byte* to;
    std::vector<std::byte> bytes;
  };

  static void CheckCreated(const absl::Status& status);
  // Allocates memory that begins with `values`.
  std::byte* Allocate(int64_t bytes, absl::Span<const std::byte> values = {}, int64_t offset = 0);
  std::byte* Copied(absl::Span<const std::byte> bytes, int64_t offset = 0) {
    return Allocate(std::ssize(bytes), bytes, offset);
  }

  const std::unique_ptr<kernels::Device> device_;
  const int64_t offset_;
  const int64_t guard_bytes_;
  std::vector<Guarded> memory_;
  std::vector<Contents> contents_;
  std::vector<std::unique_ptr<kernels::Operation>> operations_;
};

// Returns the bounds of values that are computed in float32 to within `bounds` and stored as
// `type`.
std::vector<double> StoredBounds(const std::vector<double>& expected, std::vector<double> bounds,
                                 kernels::DType type);

// The numbers that tensors hold, one vector each.
using OpValues = std::vector<double>;
using OpResults = std::vector<OpValues>;
using OpRun = absl::FunctionRef<std::vector<kernels::Tensor>(OpBench&)>;

// Returns the results of `run` on every variant of the backend, which must have the same bits.
OpResults ResultsOn(const OpBackend& backend, Addresses addresses, OpRun run);

// Returns why tests cannot run on the backend here; fails the test if a machine must have it.
absl::Status CheckAvailable(const OpBackend& backend);

// A test with a case, usually the operation's shape, on a backend.
template <typename Case>
class OpTest : public ::testing::TestWithParam<std::tuple<OpBackend, Case>> {
 public:
  const OpBackend& backend() const { return std::get<0>(this->GetParam()); }
  const Case& shape() const { return std::get<1>(this->GetParam()); }
  kernels::DType type() const { return backend().type(); }

 protected:
  void SetUp() override {
    if (const absl::Status status = CheckAvailable(backend()); !status.ok()) {
      GTEST_SKIP() << status.message();
    }
  }

  std::vector<float> Rounded(std::vector<float> values) const {
    return RoundedTo(type(), std::move(values));
  }
  // Returns the numbers of what `run` returns: a tensor, or an array or vector of tensors, some of
  // which may be empty.
  template <typename Run>
  auto Results(Run run, Addresses addresses = Addresses::kAligned) const {
    using Tensors = std::invoke_result_t<Run, OpBench&>;
    if constexpr (std::is_same_v<Tensors, kernels::Tensor>) {
      return ResultsOn(backend(), addresses,
                       [&](OpBench& bench) { return std::vector<kernels::Tensor>{run(bench)}; })[0];
    } else if constexpr (std::is_same_v<Tensors, std::vector<kernels::Tensor>>) {
      return ResultsOn(backend(), addresses, run);
    } else {
      OpResults results = ResultsOn(backend(), addresses, [&](OpBench& bench) {
        const Tensors tensors = run(bench);
        return std::vector<kernels::Tensor>(tensors.begin(), tensors.end());
      });
      std::array<OpValues, std::tuple_size_v<Tensors>> named;
      std::move(results.begin(), results.end(), named.begin());
      return named;
    }
  }
  template <typename Run>
  auto ResultsAtAnyAddress(Run run) const {
    return Results(run, Addresses::kAny);
  }

  // Matches what was computed in float32 to within `bounds`, and then stored in the activation
  // type.
  auto Near(const std::vector<double>& expected, std::vector<double> bounds) const {
    return CloseTo(expected, StoredBounds(expected, std::move(bounds), type()));
  }
};

// Matches numbers with the same bits, including NaN and the sign of zeros.
MATCHER_P(HasTheBitsOf, expected, "has the bits of what is expected") {
  return arg.size() == expected.size() &&
         std::memcmp(arg.data(), expected.data(), arg.size() * sizeof(arg[0])) == 0;
}

// Expects that no backend of the program creates an operation of any of the shapes.
template <typename Shape>
void ExpectInvalid(const std::vector<Shape>& shapes) {
  for (const OpBackend& backend : OpBackends()) {
    if (!CheckAvailable(backend).ok()) continue;
    SCOPED_TRACE(backend.name);
    OpBench bench(backend.variants.front());
    for (size_t i = 0; i < shapes.size(); ++i) {
      EXPECT_THAT(bench.ops().Create(shapes[i]), StatusIs(absl::StatusCode::kInvalidArgument))
          << "shape " << i;
    }
  }
}

// Instantiates a test for all backends and the given cases, or those of a container;
// `name_of(case)` is part of the tests' names. The last macro is for other backends, and any
// generator of cases.
#define INSTANTIATE_OP_TEST(suite, name_of, ...)                              \
  INSTANTIATE_OP_TEST_ON(::stagecoach::testing::OpBackends(), suite, name_of, \
                         ::testing::Values(__VA_ARGS__))
#define INSTANTIATE_OP_TEST_FROM(suite, name_of, cases)                       \
  INSTANTIATE_OP_TEST_ON(::stagecoach::testing::OpBackends(), suite, name_of, \
                         ::testing::ValuesIn(cases))
#define INSTANTIATE_OP_TEST_ON(backends, suite, name_of, cases)                                 \
  INSTANTIATE_TEST_SUITE_P(On, suite, ::testing::Combine(::testing::ValuesIn(backends), cases), \
                           [](const auto& param_info) {                                         \
                             return absl::StrCat(std::get<0>(param_info.param).name, "_",       \
                                                 name_of(std::get<1>(param_info.param)));       \
                           })

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_OPS_OP_HARNESS_H_
