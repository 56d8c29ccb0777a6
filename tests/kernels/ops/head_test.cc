#include "kernels/ops/head.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/layer_norm.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::kernels::head_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::ActivationBound;
using ::stagecoach::testing::CheckAvailable;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::ExpectInvalid;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::Magnitudes;
using ::stagecoach::testing::OpBackends;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpTest;
using ::stagecoach::testing::Precision;
using ::stagecoach::testing::PrecisionOf;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::StoredBound;
using ::stagecoach::testing::StoredBounds;
using ::stagecoach::testing::ToDouble;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsNan;
using ::testing::Le;
using ::testing::Not;

struct Problem {
  Problem(const HeadShape& shape_in, DType type_in)
      : shape(shape_in), type(type_in), valid_rows(shape_in.rows) {
    x = RoundedTo(type, RandomNormal(shape.rows * shape.features, 1));
    // Scaled so that logits are about normal.
    std::vector<float> weights = RandomNormal(shape.classes * shape.features, 2);
    for (float& weight : weights) weight /= std::sqrt(static_cast<float>(shape.features));
    w = RoundedTo(type, std::move(weights));
    labels = RandomLabels(shape.rows, shape.classes, 3);
    dw = RandomNormal(shape.classes * shape.features, 4);
  }
  // Marks the samples of the last rows as padding, with a distinct input.
  void Pad(int64_t rows) {
    valid_rows = (shape.rows - rows) / shape.positions * shape.positions;
    std::fill(x.begin() + valid_rows * shape.features, x.end(), 100.0F);
    std::fill(labels.begin() + valid_rows, labels.end(), -1);
  }

  LossTerms terms() const { return {valid_rows / shape.positions, scale}; }

  HeadShape shape;
  DType type;
  int64_t valid_rows;
  float scale = 0.125F;
  std::vector<float> x, w, dw;
  std::vector<int32_t> labels;
};

// (rows, columns) -> (columns, rows)
Vector Transposed(const Vector& values, int64_t rows, int64_t columns) {
  Vector out(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      out[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return out;
}

// The exact values, as a linear layer and a loss, and the bounds for an operation that computes in
// float32 and may store logits and their gradients in the activation type.
struct Expected {
  explicit Expected(const Problem& problem)
      : shape(problem.shape),
        type(problem.type),
        linear{shape.rows, shape.features, shape.classes, Activation::kNone, /*has_bias=*/false},
        x(ToDouble(problem.x)),
        w(Transposed(ToDouble(problem.w), shape.classes, shape.features)),
        logits(Capped(reference::LinearForward(linear, x, w, {}).y)),
        of_logits(reference::SoftmaxCrossEntropy({shape.rows, shape.classes, shape.positions},
                                                 logits, problem.labels, problem.valid_rows,
                                                 problem.scale)),
        loss(OfProducts()),
        dx(reference::LinearBackwardInput(linear, loss.gradient, logits, w).dx),
        dw(WeightGradient(x, loss.gradient)) {
    logit_bounds = reference::LinearForward(linear, Magnitudes(x), Magnitudes(w), {}).y;
    for (double& bound : logit_bounds) bound *= Gamma(shape.features);
    logit_bounds = StoredBounds(logits, std::move(logit_bounds), type);
    if (shape.logit_cap > 0.0F) BoundCappedLogits();
    Vector gradient_bounds(logits.size());
    const double row_scale =
        static_cast<double>(problem.scale) / static_cast<double>(shape.positions);
    for (int64_t r = 0; r < problem.valid_rows; ++r) {
      const int32_t label = problem.labels[static_cast<size_t>(r)];
      if (label != kNoLabel) AddRow(r, label, row_scale, gradient_bounds);
    }
    loss_bound /= static_cast<double>(shape.positions);
    if (shape.logit_cap > 0.0F) BoundSlopes(gradient_bounds);
    gradient_bounds = StoredBounds(loss.gradient, std::move(gradient_bounds), type);
    Vector magnitudes = Magnitudes(loss.gradient);
    for (size_t i = 0; i < magnitudes.size(); ++i) magnitudes[i] += gradient_bounds[i];
    dx_bounds = StoredBounds(
        dx,
        Bounds(reference::LinearBackwardInput(linear, gradient_bounds, logits, Magnitudes(w)).dx,
               reference::LinearBackwardInput(linear, magnitudes, logits, Magnitudes(w)).dx,
               shape.classes),
        type);
    dw_bounds = Bounds(WeightGradient(Magnitudes(x), gradient_bounds),
                       WeightGradient(Magnitudes(x), magnitudes), shape.rows);
  }

  double cap() const { return static_cast<double>(shape.logit_cap); }
  Vector Capped(Vector products) const {
    if (shape.logit_cap == 0.0F) return products;
    for (double& z : products) z = cap() * std::tanh(z / cap());
    return products;
  }
  double SlopeOf(double logit) const {
    return shape.logit_cap == 0.0F ? 1.0 : 1.0 - logit * logit / (cap() * cap());
  }
  // Returns the loss with the derivatives by what is capped.
  reference::LossOutput OfProducts() const {
    reference::LossOutput out = of_logits;
    for (size_t i = 0; i < out.gradient.size(); ++i) out.gradient[i] *= SlopeOf(logits[i]);
    return out;
  }
  // What is capped is off by at most the bound, and tanh has no larger slope than 1. A product that
  // is stored was rounded once already, before the result is.
  void BoundCappedLogits() {
    for (size_t i = 0; i < logits.size(); ++i) {
      const double t_bound = ActivationBound(Activation::kTanh, std::atanh(logits[i] / cap()),
                                             logit_bounds[i] / cap() + Gamma(2) * 3.0);
      logit_bounds[i] = cap() * t_bound + Gamma(2) * std::fabs(logits[i]);
    }
    logit_bounds = StoredBounds(logits, std::move(logit_bounds), type);
  }
  // A slope 1 - t^2 moves by as much as t, twice, and has 4 roundings.
  void BoundSlopes(Vector& gradient_bounds) const {
    for (size_t i = 0; i < logits.size(); ++i) {
      const double slope_bound = 2.0 * (logit_bounds[i] / cap() + Gamma(2)) + Gamma(4);
      gradient_bounds[i] = (gradient_bounds[i] + std::fabs(of_logits.gradient[i])) * slope_bound +
                           gradient_bounds[i] * SlopeOf(logits[i]) +
                           Gamma(2) * std::fabs(loss.gradient[i]);
    }
  }

  // Adds the expected gradients to `start`.
  void AddTo(const std::vector<float>& start) {
    for (size_t i = 0; i < dw.size(); ++i) {
      const double value = static_cast<double>(start[i]);
      dw[i] += value;
      dw_bounds[i] += Gamma(shape.rows + 1) * (std::fabs(value) + std::fabs(dw[i]));
    }
  }

  Vector WeightGradient(const Vector& inputs, const Vector& gradient) const {
    return Transposed(reference::LinearBackwardWeight(linear, inputs, gradient).dw, shape.features,
                      shape.classes);
  }

  // Logits that are off by at most e make a probability off by a factor of e^(2e), and the loss by
  // 2e. Then come the errors of the softmax: z - max is off by u |z - max|, which becomes the
  // relative error of its exponential, and so does that of the exponent of base 2; a term of their
  // sum undergoes as many roundings as a part of the row has terms, and is rescaled at most as
  // often; a probability is a quotient of two such sums.
  void AddRow(int64_t r, int32_t label, double row_scale, Vector& gradient_bounds) {
    const Precision& precision = PrecisionOf(DType::kFloat32);
    const auto C = static_cast<size_t>(shape.classes);
    const size_t first = static_cast<size_t>(r) * C;
    const auto row = reference::Values(logits).subspan(first, C);
    const auto bounds = reference::Values(logit_bounds).subspan(first, C);
    const double e = *std::max_element(bounds.begin(), bounds.end());
    CountCorrect(row, static_cast<size_t>(label), e);
    const auto [smallest, largest] = std::minmax_element(row.begin(), row.end());
    const double spread = *largest - *smallest + 2.0 * e;
    const double terms = static_cast<double>(std::min(C, C / 512 + 64));
    const double sum_error = precision.unit_roundoff * (terms * (3.0 + precision.elementary) +
                                                        precision.elementary + 2.5 * spread);
    loss_bound += 1.01 * (2.0 * e + sum_error + precision.unit_roundoff * spread);
    const double exponential_error =
        precision.unit_roundoff * (2.0 * precision.elementary + 2.5 * spread + 6.0);
    double sum = 0.0;
    for (const double value : row) sum += std::exp(value - *largest);
    for (size_t c = 0; c < C; ++c) {
      const double probability = std::exp(row[c] - *largest) / sum;
      gradient_bounds[first + c] =
          row_scale * (probability * std::expm1(1.01 * (2.0 * e + sum_error + exponential_error)) +
                       2.0 * precision.unit_roundoff + precision.underflow);
    }
  }

  // Counts rows whose label has the largest logit in any case, and those where it may have.
  void CountCorrect(reference::Values row, size_t label, double e) {
    double others = -HUGE_VAL;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c != label) others = std::max(others, row[c]);
    }
    least_correct += row[label] - e > others + e ? 1 : 0;
    most_correct += row[label] + e >= others - e ? 1 : 0;
  }

  // Returns the bounds of sums of `terms` products, from the errors of the operands and from all
  // magnitudes.
  static Vector Bounds(Vector errors, const Vector& magnitudes, int64_t terms) {
    for (size_t i = 0; i < errors.size(); ++i) errors[i] += Gamma(terms + 1) * magnitudes[i];
    return errors;
  }

  HeadShape shape;
  DType type;
  LinearShape linear;
  Vector x, w;  // w (F, C)
  Vector logits;
  reference::LossOutput of_logits, loss;  // with derivatives by logits, and by products
  Vector dx, dw;
  Vector logit_bounds, dx_bounds, dw_bounds;
  double loss_bound = 0.0;
  double least_correct = 0.0, most_correct = 0.0;
};

enum class Pass { kSplit, kFused };

class Head : public OpTest<HeadShape> {
 protected:
  struct Forwarded {
    Vector result, logits;
  };
  Forwarded Forward(const Problem& problem, bool wants_logits = true) const {
    OpResults results = Results([&](OpBench& bench) {
      HeadOp& op = bench.Create(problem.shape);
      const Tensors on = Place(bench, problem, op);
      const Shape matrix{problem.shape.rows, problem.shape.classes};
      const Tensor logits = bench.Result(matrix);
      const HostBuffer host = bench.device().AllocateHost(logits.bytes()).value();
      bench.Run([&](Stream& stream) -> absl::Status {
        const absl::Status status = op.Forward(
            stream, on.x, on.w, on.labels, on.terms,
            wants_logits ? Tensor{host.data(), type(), matrix} : Tensor{}, on.result, on.workspace);
        if (!status.ok() || !wants_logits) return status;
        return stream.CopyFromHost(logits.data, host.data(), host.bytes());
      });
      return std::vector<Tensor>{on.result, logits};
    });
    return {results[0], wants_logits ? results[1] : Vector{}};
  }

  // Returns the logits of the first `rows` rows, without the loss.
  Vector LogitsAlone(const Problem& problem, int64_t rows) const {
    return Results([&](OpBench& bench) {
      HeadOp& op = bench.Create(problem.shape);
      const Tensors on = Place(bench, problem, op);
      const Shape matrix{rows, problem.shape.classes};
      const Tensor logits = bench.Result(matrix);
      const HostBuffer host = bench.device().AllocateHost(logits.bytes()).value();
      bench.Run([&](Stream& stream) -> absl::Status {
        const absl::Status status = op.Forward(stream, on.x, on.w, {}, nullptr,
                                               {host.data(), type(), matrix}, {}, on.workspace);
        if (!status.ok()) return status;
        return stream.CopyFromHost(logits.data, host.data(), host.bytes());
      });
      return logits;
    });
  }

  // Chooses twice, at positions 1 and 2 of 4, the second time for the next position. Returns by
  // position what was chosen, or -2; the position in two halves; and what follows.
  Vector Choose(const Problem& problem, int64_t classes) const {
    return Results([&](OpBench& bench) {
      HeadOp& op = bench.Create(problem.shape);
      const Tensors on = Place(bench, problem, op);
      const Tensor left =
          bench.Integers({4 + 2 + 1}, std::vector<int32_t>{-2, -2, -2, -2, 1, 0, -2});
      const HostBuffer chosen = bench.device().AllocateHost(4 * 4).value();
      std::fill_n(reinterpret_cast<int32_t*>(chosen.data()), 4, -2);
      bench.Run([&](Stream& stream) -> absl::Status {
        int32_t* const numbers = left.i32();
        HeadChoice choice = {.classes = classes,
                             .position = reinterpret_cast<int64_t*>(numbers + 4),
                             .chosen = reinterpret_cast<int32_t*>(chosen.data())};
        absl::Status status = op.Choose(stream, on.x, on.w, choice, on.workspace);
        choice.next = numbers + 6;
        status.Update(op.Choose(stream, on.x, on.w, choice, on.workspace));
        status.Update(stream.CopyFromHost(numbers, chosen.data(), 4 * 4));
        return status;
      });
      return left;
    });
  }

  // Chooses once, for the norm of x, by one operation or by two.
  Vector ChooseOfNorm(const Problem& problem, bool centers, bool at_once) const {
    return Results([&](OpBench& bench) {
      constexpr float kEpsilon = 1e-3F;
      const auto& [rows, features] = std::pair(problem.shape.rows, problem.shape.features);
      HeadOp& op = bench.Create(problem.shape);
      LayerNormOp& norm = bench.Create(LayerNormShape{rows, features, kEpsilon, centers});
      const Tensors on = Place(bench, problem, op);
      const Tensor gamma = bench.Operand({features}, Rounded(RandomNormal(features, 11)));
      const Tensor beta = bench.Operand({features}, Rounded(RandomNormal(features, 12)));
      const Tensor narrow = bench.Result({rows, features});
      const Tensor statistics = bench.ResultOf(DType::kFloat32, {rows, 2});
      const Tensor left = bench.Integers({2}, std::vector<int32_t>{0, 0});
      const HostBuffer chosen = bench.device().AllocateHost(4).value();
      bench.Run([&](Stream& stream) -> absl::Status {
        const HeadChoice choice = {.classes = problem.shape.classes,
                                   .position = reinterpret_cast<int64_t*>(left.i32()),
                                   .chosen = reinterpret_cast<int32_t*>(chosen.data())};
        absl::Status status;
        if (at_once) {
          status = op.ChooseOfNorm(stream, {gamma, beta, kEpsilon, centers}, on.x, on.w, choice,
                                   on.workspace);
        } else {
          status = norm.Forward(stream, on.x, gamma, beta, {}, statistics, narrow);
          status.Update(op.Choose(stream, narrow, on.w, choice, on.workspace));
        }
        status.Update(stream.CopyFromHost(left.i32(), chosen.data(), 4));
        return status;
      });
      return left;
    });
  }

  struct Gradients {
    Vector result, dx, dw;
    friend bool operator==(const Gradients&, const Gradients&) = default;
  };
  Gradients Backward(const Problem& problem, Pass pass, bool accumulate = false,
                     bool wants_dx = true) const {
    const Shape inputs{problem.shape.rows, problem.shape.features};
    const Shape weights{problem.shape.classes, problem.shape.features};
    OpResults results = Results([&](OpBench& bench) {
      HeadOp& op = bench.Create(problem.shape);
      const Tensors on = Place(bench, problem, op);
      const Tensor dx = wants_dx ? bench.Result(inputs) : Tensor{};
      const Tensor dw = bench.Sums(weights, problem.dw, accumulate);
      std::byte* const statistics = bench.Workspace(op.statistics_bytes());
      std::byte* const other = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        if (pass == Pass::kFused) {
          return op.Backward(stream, on.x, on.w, on.labels, on.terms, on.result, dx, dw, accumulate,
                             on.workspace);
        }
        const absl::Status input = op.BackwardInput(stream, on.x, on.w, on.labels, on.terms,
                                                    on.result, dx, statistics, on.workspace);
        if (!input.ok()) return input;
        return op.BackwardWeight(stream, on.x, on.w, statistics, dw, accumulate, other);
      });
      std::vector<Tensor> tensors = {on.result, dw};
      if (wants_dx) tensors.push_back(dx);
      return tensors;
    });
    return {results[0], wants_dx ? results[2] : Vector{}, results[1]};
  }

  // The classes of each of at most `most` blocks: the first is half of them, the others are fewer.
  static std::vector<int64_t> BlocksOf(int64_t classes, int64_t most) {
    std::vector<int64_t> blocks;
    for (int64_t left = classes; left > 0; left -= blocks.back()) {
      blocks.push_back(std::ssize(blocks) + 1 == most ? left : (left + 1) / 2);
    }
    return blocks;
  }

  // The same by blocks. dx is the sum of what they give, in double.
  Gradients BackwardOfBlocks(const Problem& problem, bool accumulate, bool at_once,
                             int64_t most = 3) const {
    const HeadShape& shape = problem.shape;
    const std::vector<int64_t> blocks = BlocksOf(shape.classes, most);
    const Shape inputs{shape.rows, shape.features};
    OpResults results = Results([&](OpBench& bench) {
      HeadShape first_shape = shape;
      first_shape.classes = blocks.front();
      HeadOp& joins = bench.Create(first_shape);
      const Tensors on = Place(bench, problem, joins);
      const auto count = static_cast<int64_t>(blocks.size());
      const Tensor numbers = bench.ResultOf(DType::kFloat32, {count, kBlockNumbers, shape.rows});
      std::byte* const statistics = bench.Workspace(joins.statistics_bytes());
      std::vector<Tensor> tensors = {on.result};
      int64_t first = 0;
      std::vector<std::function<absl::Status(Stream&)>> numbers_of, gradients_of;
      for (int64_t block = 0; block < count; first += blocks[static_cast<size_t>(block++)]) {
        HeadShape own = shape;
        own.classes = blocks[static_cast<size_t>(block)];
        HeadOp& op = bench.Create(own);
        const Shape weights{own.classes, shape.features};
        const auto part = [&](const std::vector<float>& all) {
          return absl::MakeConstSpan(all).subspan(static_cast<size_t>(first * shape.features),
                                                  static_cast<size_t>(weights.elements()));
        };
        const Tensor w = bench.Operand(weights, part(problem.w));
        const Tensor dw = bench.Sums(weights, part(problem.dw), accumulate);
        const Tensor dx = bench.Result(inputs);
        Tensor place = numbers;
        place.shape = {kBlockNumbers, shape.rows};
        place.data = numbers.f32() + block * place.elements();
        std::byte* const scratch = bench.Workspace(op.workspace_bytes());
        numbers_of.emplace_back([=, &op](Stream& stream) {
          return op.NumbersOfBlock(stream, on.x, w, on.labels, first, place, scratch);
        });
        gradients_of.emplace_back([=, &op](Stream& stream) {
          const auto compute = [&](const Tensor& to_x, const Tensor& to_w) {
            return op.GradientsOfBlock(stream, on.x, w, first, statistics, to_x, to_w, accumulate,
                                       scratch);
          };
          if (at_once) return compute(dx, dw);
          absl::Status status = compute(dx, {});
          status.Update(compute({}, dw));
          return status;
        });
        tensors.insert(tensors.end(), {dw, dx});
      }
      bench.Run([&](Stream& stream) {
        absl::Status status;
        for (const auto& run : numbers_of) status.Update(run(stream));
        status.Update(joins.JoinBlocks(stream, numbers, shape.classes, on.labels, on.terms,
                                       on.result, statistics, on.workspace));
        for (const auto& run : gradients_of) status.Update(run(stream));
        return status;
      });
      return tensors;
    });
    Gradients gradients = {results[0], Vector(static_cast<size_t>(inputs.elements())), {}};
    for (size_t i = 1; i < results.size(); i += 2) {
      gradients.dw.insert(gradients.dw.end(), results[i].begin(), results[i].end());
      for (size_t j = 0; j < gradients.dx.size(); ++j) gradients.dx[j] += results[i + 1][j];
    }
    return gradients;
  }

  Problem MakeProblem() const { return {shape(), type()}; }
  Problem MakeProblem(const HeadShape& shape) const { return {shape, type()}; }

  void ExpectMatchesReference(const Problem& problem) const {
    const Expected expected(problem);
    const auto [result, dx, dw] = Backward(problem, Pass::kSplit);
    EXPECT_NEAR(result[0], expected.loss.loss, expected.loss_bound);
    EXPECT_THAT(result[1], AllOf(Ge(expected.least_correct), Le(expected.most_correct)));
    EXPECT_THAT(dx, CloseTo(expected.dx, expected.dx_bounds));
    EXPECT_THAT(dw, CloseTo(expected.dw, expected.dw_bounds));
    const Forwarded forwarded = Forward(problem);
    EXPECT_EQ(forwarded.result, result);
    EXPECT_THAT(forwarded.logits, CloseTo(expected.logits, expected.logit_bounds));
  }

 private:
  struct Tensors {
    Tensor x, w, labels;
    const LossTerms* terms;
    Tensor result;
    std::byte* workspace;
  };
  static Tensors Place(OpBench& bench, const Problem& problem, const HeadOp& op) {
    const int64_t rows = problem.shape.rows, features = problem.shape.features;
    const int64_t classes = problem.shape.classes;
    return {
        bench.Operand({rows, features}, problem.x), bench.Operand({classes, features}, problem.w),
        bench.Integers({rows}, problem.labels),     bench.Place(problem.terms()),
        bench.ResultOf(DType::kFloat64, {2}),       bench.Workspace(op.workspace_bytes())};
  }
};

TEST_P(Head, MatchesReference) { ExpectMatchesReference(MakeProblem()); }

TEST_P(Head, PaddingCountsForNothing) {
  Problem problem = MakeProblem();
  const int64_t padding = (problem.shape.rows + 1) / 2;
  problem.Pad(padding);
  ExpectMatchesReference(problem);
  const Vector dx = Backward(problem, Pass::kFused).dx;
  EXPECT_THAT(Vector(dx.end() - padding * problem.shape.features, dx.end()), Each(0.0));
}

TEST_P(Head, ARowWithoutALabelCountsForNothing) {
  Problem problem = MakeProblem();
  for (int64_t r = problem.shape.rows / 2; r < problem.shape.rows; r += 3) {
    problem.labels[static_cast<size_t>(r)] = kNoLabel;
  }
  ExpectMatchesReference(problem);
  const Gradients fused = Backward(problem, Pass::kFused);
  EXPECT_EQ(fused, Backward(problem, Pass::kSplit));
  const int64_t features = problem.shape.features;
  for (int64_t r = problem.shape.rows / 2; r < problem.shape.rows; r += 3) {
    EXPECT_THAT(Vector(fused.dx.begin() + r * features, fused.dx.begin() + (r + 1) * features),
                Each(0.0));
  }
}

TEST_P(Head, FusedAndSplitGiveTheSameBits) {
  const Problem problem = MakeProblem();
  EXPECT_EQ(Backward(problem, Pass::kFused), Backward(problem, Pass::kSplit));
  Expected expected(problem);
  expected.AddTo(problem.dw);
  const Gradients added = Backward(problem, Pass::kFused, /*accumulate=*/true);
  EXPECT_THAT(added.dw, CloseTo(expected.dw, expected.dw_bounds));
  EXPECT_EQ(Backward(problem, Pass::kSplit, /*accumulate=*/true), added);
}

// Each of three blocks rounds what it gives of dx.
TEST_P(Head, BlocksOfClassesMatchReference) {
  Problem problem = MakeProblem();
  problem.Pad(problem.shape.rows / 3);
  if (problem.shape.rows > 2) problem.labels[1] = kNoLabel;
  Expected expected(problem);
  for (double& bound : expected.dx_bounds) bound *= 3.0;
  const double largest = *std::max_element(problem.w.begin(), problem.w.end());
  for (double& bound : expected.dx_bounds) {
    bound += 3.0 * PrecisionOf(type()).unit_roundoff * problem.scale * std::fabs(largest);
  }
  const Gradients actual = BackwardOfBlocks(problem, /*accumulate=*/false, /*at_once=*/false);
  EXPECT_NEAR(actual.result[0], expected.loss.loss, expected.loss_bound);
  EXPECT_THAT(actual.result[1], AllOf(Ge(expected.least_correct), Le(expected.most_correct)));
  EXPECT_THAT(actual.dx, CloseTo(expected.dx, expected.dx_bounds));
  EXPECT_THAT(actual.dw, CloseTo(expected.dw, expected.dw_bounds));
  EXPECT_EQ(BackwardOfBlocks(problem, /*accumulate=*/false, /*at_once=*/true), actual);
  const Gradients added = BackwardOfBlocks(problem, /*accumulate=*/true, /*at_once=*/true);
  expected.AddTo(problem.dw);
  EXPECT_THAT(added.dw, CloseTo(expected.dw, expected.dw_bounds));
}

// A CPU device has 53 bits of a sum, and the numbers of a block 48.
TEST_P(Head, OneBlockOfAllClassesHasTheBitsOfTheWholeOnACudaDevice) {
  Problem problem = MakeProblem();
  problem.Pad(problem.shape.rows / 3);
  for (const bool accumulate : {false, true}) {
    const Gradients block = BackwardOfBlocks(problem, accumulate, /*at_once=*/true, /*most=*/1);
    const Gradients whole = Backward(problem, Pass::kFused, accumulate);
    if (backend().is_cpu) {
      EXPECT_NEAR(block.result[0], whole.result[0], 1e-12 * static_cast<double>(shape().rows));
    } else {
      EXPECT_EQ(block, whole);
    }
  }
}

TEST_P(Head, WhatIsNotWantedChangesNoBit) {
  Problem problem = MakeProblem();
  const Gradients expected = Backward(problem, Pass::kFused);
  for (const Pass pass : {Pass::kSplit, Pass::kFused}) {
    const Gradients actual = Backward(problem, pass, /*accumulate=*/false, /*wants_dx=*/false);
    EXPECT_EQ(actual.result, expected.result);
    EXPECT_EQ(actual.dw, expected.dw);
  }
  const Forwarded both = Forward(problem);
  EXPECT_EQ(Forward(problem, /*wants_logits=*/false).result, both.result);
  problem.valid_rows = 0;
  EXPECT_EQ(Forward(problem).logits, both.logits);
}

TEST_P(Head, GivesLogitsOfTheFirstRowsWithoutALoss) {
  const Problem problem = MakeProblem();
  const Vector all = Forward(problem).logits;
  for (const int64_t rows : {int64_t{1}, (problem.shape.rows + 1) / 2}) {
    EXPECT_EQ(LogitsAlone(problem, rows),
              Vector(all.begin(), all.begin() + rows * problem.shape.classes));
  }
}

// A device may sum the logits to choose from in another order than those that Forward returns.
TEST_P(Head, ChoosesTheClassOfTheLargestLogitOfTheFirstRow) {
  const Problem problem = MakeProblem();
  const Vector logits = Forward(problem).logits;
  for (const int64_t classes : {problem.shape.classes, (problem.shape.classes + 1) / 2}) {
    const double largest = *std::max_element(logits.begin(), logits.begin() + classes);
    const Vector found = Choose(problem, classes);
    const double chosen = found[1];
    ASSERT_GE(chosen, 0.0);
    ASSERT_LT(chosen, static_cast<double>(classes));
    EXPECT_THAT(found, ElementsAre(-2, chosen, chosen, -2, 3, 0, chosen));
    EXPECT_GE(logits[static_cast<size_t>(chosen)],
              largest - 4.0 * PrecisionOf(type()).unit_roundoff * std::abs(largest));
  }
}

TEST_P(Head, ChoosesForTheNormOfItsInputWhatItChoosesAfterIt) {
  const Problem problem = MakeProblem();
  const bool chooses = OpBench(backend().variants.front()).Create(problem.shape).chooses_of_norm();
  EXPECT_EQ(chooses, !backend().is_cpu && type() == DType::kBfloat16 && shape().features % 8 == 0 &&
                         shape().logit_cap == 0.0F);
  if (!chooses) return;
  for (const bool centers : {true, false}) {
    EXPECT_EQ(ChooseOfNorm(problem, centers, true), ChooseOfNorm(problem, centers, false));
  }
}

std::string NameOf(const HeadShape& shape) {
  return absl::StrCat(shape.rows, "x", shape.features, "x", shape.classes, "_", shape.positions,
                      shape.logit_cap > 0.0F ? "_capped" : "");
}

// Several tiles of rows, of classes and of features; lanes that do not fill a vector; vocabulary
// sizes that are not a multiple of one.
INSTANTIATE_OP_TEST(Head, NameOf, HeadShape{1, 1, 1}, HeadShape{1, 9, 700}, HeadShape{5, 3, 1},
                    HeadShape{33, 20, 1201}, HeadShape{140, 7, 10, 1, 128},
                    HeadShape{150, 24, 257, 1, 128}, HeadShape{70, 410, 19}, HeadShape{2, 1000, 45},
                    HeadShape{12, 16, 7, 4}, HeadShape{264, 5, 600, 132, 128},
                    HeadShape{5, 3, 1, 1, 0, false, 2.0F},
                    HeadShape{33, 20, 1201, 1, 0, false, 1.5F},
                    HeadShape{150, 24, 257, 1, 128, false, 4.0F},
                    HeadShape{12, 16, 7, 4, 0, false, 0.5F});

// The vocabulary size of GPT-2.
using HeadOfManyClasses = Head;

TEST_P(HeadOfManyClasses, MatchesReference) { ExpectMatchesReference(MakeProblem()); }

TEST_P(HeadOfManyClasses, ChoosesTheLast) {
  Problem problem = MakeProblem();
  const int64_t last = problem.shape.classes - 1;
  for (int64_t f = 0; f < problem.shape.features; ++f) {
    problem.w[static_cast<size_t>(last * problem.shape.features + f)] =
        problem.x[static_cast<size_t>(f)] * 4.0F;
  }
  EXPECT_EQ(Choose(problem, last + 1)[1], static_cast<double>(last));
  EXPECT_LT(Choose(problem, last)[1], static_cast<double>(last));
}

INSTANTIATE_OP_TEST(HeadOfManyClasses, NameOf, HeadShape{3, 8, 50257});

using HeadOfAnyShape = Head;

TEST_P(HeadOfAnyShape, FirstOfSeveralLargestLogitsIsThePrediction) {
  Problem problem = MakeProblem({.rows = 3, .features = 1, .classes = 2000});
  problem.x = {1.0F, 1.0F, 1.0F};
  std::fill(problem.w.begin(), problem.w.end(), 0.5F);
  for (const size_t c : {7, 9, 1900}) problem.w[c] = 0.75F;
  problem.labels = {7, 9, 1900};
  EXPECT_EQ(Backward(problem, Pass::kFused).result[1], 1.0);
  problem.w[1900] = 1.0F;
  EXPECT_EQ(Forward(problem).result[1], 1.0);
  std::fill(problem.w.begin(), problem.w.end(), -0.5F);
  problem.labels = {0, 1, 1999};
  EXPECT_EQ(Forward(problem).result[1], 1.0);
}

TEST_P(HeadOfAnyShape, ChoosesTheFirstOfEqualsAndNoneWhereALogitIsNotFinite) {
  for (const int64_t features : {1, 8}) {  // all but the first are 0
    Problem problem = MakeProblem({.rows = 2, .features = features, .classes = 2000});
    std::fill(problem.x.begin(), problem.x.end(), 0.0F);
    problem.x[0] = 1.0F;
    const auto weight = [&](int64_t c) -> float& {
      return problem.w[static_cast<size_t>(c * features)];
    };
    for (int64_t c = 0; c < 2000; ++c) weight(c) = -3.0F;
    EXPECT_THAT(Choose(problem, 2000), ElementsAre(-2, 0, 0, -2, 3, 0, 0));
    for (const int64_t c : {1900, 9, 701}) weight(c) = -0.75F;
    EXPECT_THAT(Choose(problem, 2000), ElementsAre(-2, 9, 9, -2, 3, 0, 9));
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    for (const float value : {kNan, kInfinity, -kInfinity}) {
      if (features > 1 && value != kInfinity) continue;
      weight(1500) = value;
      EXPECT_THAT(Choose(problem, 2000), ElementsAre(-2, -1, -1, -2, 3, 0, 0)) << value;
      EXPECT_THAT(Choose(problem, 1500), ElementsAre(-2, 9, 9, -2, 3, 0, 9)) << value;
    }
  }
}

// A cap is no excuse for a product that is infinite.
TEST_P(HeadOfAnyShape, ACapKeepsLogitsWithinIt) {
  Problem problem = MakeProblem({.rows = 2, .features = 1, .classes = 3, .logit_cap = 30.0F});
  problem.x = {1.0F, -1.0F};
  problem.w = {9984.0F, -9984.0F, 0.0F};
  problem.labels = {1, 1};
  EXPECT_THAT(Forward(problem).logits, ElementsAre(30.0, -30.0, 0.0, -30.0, 30.0, 0.0));
  const Gradients flat = Backward(problem, Pass::kFused);
  EXPECT_NEAR(flat.result[0], 60.0, 1e-5);
  EXPECT_THAT(flat.dx, Each(0.0)) << "a cap has no slope far away";
  problem.w[0] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Backward(problem, Pass::kFused).result[0], IsNan());
  EXPECT_EQ(Choose(problem, 3)[1], -1.0);
}

TEST_P(HeadOfAnyShape, SurvivesLogitsWhoseExponentialsOverflow) {
  Problem problem = MakeProblem({.rows = 3, .features = 1, .classes = 3});
  problem.x = {9984.0F, -9984.0F, 300.0F};
  problem.w = {1.0F, -1.0F, 0.0F};
  problem.labels = {1, 1, 2};
  const Expected expected(problem);
  const Gradients actual = Backward(problem, Pass::kFused);
  EXPECT_NEAR(actual.result[0], expected.loss.loss, expected.loss_bound);
  EXPECT_THAT(actual.dw, CloseTo(expected.dw, expected.dw_bounds));
}

TEST_P(HeadOfAnyShape, OnlyPaddingIsALossOfZero) {
  Problem problem = MakeProblem({.rows = 3, .features = 2, .classes = 4});
  problem.Pad(3);
  const Gradients gradients = Backward(problem, Pass::kFused);
  EXPECT_THAT(gradients.result, ElementsAre(0.0, 0.0));
  EXPECT_THAT(gradients.dw, Each(0.0));
}

TEST_P(HeadOfAnyShape, BlocksFindTheFirstOfSeveralLargestLogits) {
  Problem problem = MakeProblem({.rows = 3, .features = 1, .classes = 20});
  problem.x = {1.0F, 1.0F, 1.0F};
  std::fill(problem.w.begin(), problem.w.end(), -0.5F);
  for (const size_t c : {12, 17}) problem.w[c] = -0.25F;
  problem.labels = {12, 12, 17};
  EXPECT_EQ(BackwardOfBlocks(problem, false, true).result[1], 2.0);
  problem.w[12] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(BackwardOfBlocks(problem, false, true).result[0], IsNan());
  problem.w[12] = -0.25F;
  problem.labels[0] = 20;
  const Gradients of_no_class = BackwardOfBlocks(problem, false, true);
  EXPECT_THAT(of_no_class.result[0], IsNan());
  EXPECT_THAT(of_no_class.dw, Each(IsNan()));
}

TEST_P(HeadOfAnyShape, NotANumberIsSeenInTheLoss) {
  Problem problem = MakeProblem({.rows = 40, .features = 2, .classes = 700});
  problem.w[2 * 650] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Forward(problem).result[0], IsNan());
  EXPECT_THAT(Backward(problem, Pass::kFused).result[0], IsNan());
}

// A row whose logits are infinite: nothing of it may come into the gradients of others.
TEST_P(HeadOfAnyShape, ARowWithoutALabelMayHaveAnyLogits) {
  Problem problem = MakeProblem({.rows = 3, .features = 1, .classes = 700});
  problem.x = {1.0F, 1e38F, -1.0F};
  for (float& weight : problem.w) weight = weight < 0.0F ? -4.0F : 4.0F;
  problem.labels[1] = kNoLabel;
  const Gradients actual = Backward(problem, Pass::kSplit);
  EXPECT_EQ(actual.dx[1], 0.0);
  EXPECT_TRUE(std::isfinite(actual.result[0]));
  EXPECT_THAT(actual.dw, Each(Not(IsNan())));
}

TEST_P(HeadOfAnyShape, ALabelThatIsNoClassMakesItsRowNoNumber) {
  constexpr int64_t kFeatures = 8;
  for (const int32_t label : {-2, 5, std::numeric_limits<int32_t>::max()}) {
    Problem problem = MakeProblem({.rows = 3, .features = kFeatures, .classes = 5});
    const Vector good = Backward(problem, Pass::kFused).dx;
    problem.labels[1] = label;
    const auto [result, dx, dw] = Backward(problem, Pass::kSplit);
    EXPECT_THAT(result[0], IsNan()) << label;
    EXPECT_THAT(Vector(dx.begin() + kFeatures, dx.begin() + 2 * kFeatures), Each(IsNan())) << label;
    EXPECT_EQ(Vector(dx.begin() + 2 * kFeatures, dx.end()),
              Vector(good.begin() + 2 * kFeatures, good.end()));
    EXPECT_THAT(dw, Each(IsNan())) << label;
  }
}

INSTANTIATE_OP_TEST(HeadOfAnyShape, NameOf, HeadShape{});

TEST(HeadMemory, DoesNotGrowWithThePositionsTimesTheClasses) {
  for (const auto& backend : OpBackends()) {
    if (!CheckAvailable(backend).ok()) continue;
    SCOPED_TRACE(backend.name);
    OpBench bench(backend.variants.front());
    const auto bytes = [&](const HeadShape& shape) {
      return bench.Create(shape).workspace_bytes();
    };
    EXPECT_LT(bytes({16, 64, 5000, 1, 128}), bytes({1024, 64, 5000, 1, 128}));
    EXPECT_LE(bytes({4096, 64, 5000, 1, 128}), bytes({1024, 64, 5000, 1, 128}) + 3072 * 16);
    EXPECT_LT(bytes({65536, 768, 50257}), int64_t{5} << 28);
  }
}

TEST(HeadRefusal, IsAnInvalidArgument) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  ExpectInvalid<HeadShape>({{0, 1, 1},
                            {1, 0, 1},
                            {1, 1, 0},
                            {-1, 1, 1},
                            {kHuge, 1, 1},
                            {1, kHuge, 1},
                            {1, 1, kHuge},
                            {6, 2, 2, 4},
                            {6, 2, 2, 0},
                            {6, 2, 2, 1, 64},
                            {6, 2, 2, 1, -128},
                            {.logit_cap = -1.0F},
                            {.logit_cap = std::numeric_limits<float>::infinity()},
                            {.logit_cap = std::numeric_limits<float>::quiet_NaN()}});
}

}  // namespace
}  // namespace stagecoach::kernels::head_test
