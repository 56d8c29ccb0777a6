#include "tests/kernels/ops/linear_fixture.h"

#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/testing/close_to.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::testing {

namespace reference = kernels::reference;
using kernels::Activation;
using kernels::LinearOp;
using kernels::LinearShape;
using kernels::Stream;
using kernels::Tensor;
using reference::Vector;

namespace {

// Returns the same layer without its activation, for sums of absolute values.
LinearShape Plain(LinearShape shape) {
  shape.activation = Activation::kNone;
  return shape;
}

}  // namespace

LinearTest::LinearTest()
    : x_(Rounded(RandomNormal(inputs().elements(), 1))),
      w_(Rounded(RandomNormal(weights().elements(), 2))),
      dy_(Rounded(RandomNormal(outputs().elements(), 4))),
      z_(Rounded(RandomUniform(-6.0F, 6.0F, outputs().elements(), 5))),
      dw_(RandomNormal(weights().elements(), 6)) {
  if (shape().quantized.has_value()) {
    stored_.resize(static_cast<size_t>(shape().quantized->bytes()));
    Quantize(*shape().quantized, w_, absl::MakeSpan(stored_));
    Dequantize(*shape().quantized, stored_, absl::MakeSpan(w_));
    w_ = Rounded(w_);
  }
  if (shape().has_bias) b_ = Rounded(RandomNormal(shape().outputs, 3));
  if (shape().has_bias) db_ = RandomNormal(shape().outputs, 7);
  for (const float z : z_) {
    y_.push_back(static_cast<float>(reference::Activate(shape().activation, z)));
  }
  y_ = Rounded(y_);
}

Tensor LinearTest::KnownY(OpBench& bench) const {
  const bool is_known = !keeps_z() && shape().activation != Activation::kNone;
  return is_known ? bench.Operand(outputs(), y_) : Tensor{};
}

Tensor LinearTest::KnownZ(OpBench& bench) const {
  return keeps_z() ? bench.Operand(outputs(), z_) : Tensor{};
}

Tensor LinearTest::Weight(OpBench& bench) const {
  if (stored_.empty()) return bench.Operand(weights(), w_);
  return {bench.PlaceAll<std::byte>(stored_), kernels::DType::kUint8,
          kernels::Shape{std::ssize(stored_)}};
}

// Products in TF32 keep 10 bits of an operand after the leading one; the direction of rounding is
// unspecified.
double LinearTest::ProductBound(int64_t terms, double sum_abs) const {
  const double operand = backend().precision == kernels::Precision::kTf32 ? 0x1p-10 : 0.0;
  const double moved = (2.0 + operand) * operand * sum_abs;
  return moved + DotBound(terms, sum_abs + moved);
}

void LinearTest::ExpectForward() const {
  const auto [actual_y, actual_z] = Results([&](OpBench& bench) {
    LinearOp& op = bench.Create(shape());
    const Tensor x = bench.Operand(inputs(), x_), w = Weight(bench);
    const Tensor b = shape().has_bias ? bench.Operand(bias(), b_) : Tensor{};
    const Tensor z = keeps_z() ? bench.Result(outputs()) : Tensor{}, y = bench.Result(outputs());
    std::byte* const workspace = bench.Workspace(op.workspace_bytes());
    bench.Run([&](Stream& stream) { return op.Forward(stream, x, w, b, z, y, workspace); });
    return std::array{y, z};
  });
  const Vector x = ToDouble(x_), w = ToDouble(w_), b = ToDouble(b_);
  const auto expected = reference::LinearForward(shape(), x, w, b);
  const Vector sum_abs =
      reference::LinearForward(Plain(shape()), Magnitudes(x), Magnitudes(w), Magnitudes(b)).z;
  const auto stored = [&](double value, double bound) { return StoredBound(value, bound, type()); };
  const Activation activation = shape().activation;
  Vector z_bound, y_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    const double z = expected.z[k];
    double computed = ProductBound(shape().inputs + 1, sum_abs[k]);
    // A GPU may have stored the product before the bias was added, and then z.
    if (!backend().is_cpu) computed = stored(z - (b.empty() ? 0.0 : b[k % b.size()]), computed);
    z_bound.push_back(stored(z, computed));
    if (!backend().is_cpu) computed = z_bound[k];
    y_bound.push_back(IsExact(activation)
                          ? z_bound[k]
                          : stored(expected.y[k], ActivationBound(activation, z, computed)));
  }
  EXPECT_THAT(actual_y, CloseTo(expected.y, y_bound));
  if (!keeps_z()) return;
  EXPECT_THAT(actual_z, CloseTo(expected.z, z_bound));
}

OpValues LinearTest::ForwardOfRows(int64_t first, int64_t rows) const {
  return Results([&](OpBench& bench) {
    LinearShape own = shape();
    own.rows = rows;
    own.independent_rows = true;
    LinearOp& op = bench.Create(own);
    const auto some = absl::MakeConstSpan(x_).subspan(static_cast<size_t>(first * own.inputs),
                                                      static_cast<size_t>(rows * own.inputs));
    const kernels::Shape result = {rows, own.outputs};
    const Tensor x = bench.Operand({rows, own.inputs}, some), w = Weight(bench);
    const Tensor b = own.has_bias ? bench.Operand(bias(), b_) : Tensor{};
    const Tensor z = keeps_z() ? bench.Result(result) : Tensor{}, y = bench.Result(result);
    std::byte* const workspace = bench.Workspace(op.workspace_bytes());
    bench.Run([&](Stream& stream) { return op.Forward(stream, x, w, b, z, y, workspace); });
    return y;
  });
}

std::array<OpValues, 2> LinearTest::BackwardInput(bool wants_dx) const {
  return Results([&](OpBench& bench) {
    LinearOp& op = bench.Create(shape());
    const Tensor dy = bench.Operand(outputs(), dy_), w = Weight(bench);
    const Tensor y = KnownY(bench), z = KnownZ(bench);
    const bool has_dz = shape().activation != Activation::kNone;
    const Tensor dz = has_dz ? bench.Result(outputs()) : Tensor{};
    const Tensor dx = wants_dx ? bench.Result(inputs()) : Tensor{};
    std::byte* const workspace = bench.Workspace(op.workspace_bytes());
    bench.Run(
        [&](Stream& stream) { return op.BackwardInput(stream, dy, y, z, w, dz, dx, workspace); });
    return std::array{dz, dx};
  });
}

std::array<OpValues, 2> LinearTest::ReplayBackwardWeight(int rounds) const {
  return Results([&](OpBench& bench) {
    LinearOp& op = bench.Create(shape());
    const Tensor x = bench.Operand(inputs(), x_), dz = bench.Operand(outputs(), dy_);
    const Tensor dw = bench.Sums(weights(), dw_, /*accumulate=*/false);
    const Tensor db = bench.Sums(bias(), db_, /*accumulate=*/false);
    std::byte* const workspace = bench.Workspace(op.workspace_bytes());
    const auto recording = bench.device().CreateRecording();
    STAGECOACH_CHECK_OK(recording);
    for (int round = 0; round < rounds; ++round) {
      bench.Run([&](Stream& stream) {
        return stream.Replay(**recording, [&] {
          return op.BackwardWeight(stream, x, dz, dw, db, /*accumulate=*/false, workspace);
        });
      });
    }
    return std::array{dw, db};
  });
}

std::array<OpValues, 4> LinearTest::Backward(Way way, bool adds) const {
  return Results([&](OpBench& bench) {
    LinearOp& op = bench.Create(shape());
    const Tensor dy = bench.Operand(outputs(), dy_), x = bench.Operand(inputs(), x_);
    const Tensor w = Weight(bench), y = KnownY(bench), z = KnownZ(bench);
    const bool is_plain = shape().activation == Activation::kNone;
    const bool in_place = keeps_z() && way != Way::kApart;
    const Tensor dz = is_plain ? dy : in_place ? z : bench.Result(outputs());
    const Tensor dx = bench.Result(inputs()), dw = bench.Sums(weights(), dw_, adds);
    const Tensor db = shape().has_bias ? bench.Sums(bias(), db_, adds) : Tensor{};
    std::byte* const workspace = bench.Workspace(op.workspace_bytes());
    std::byte* const garbage = bench.Workspace(op.workspace_bytes());
    std::byte* const aside = bench.Workspace(op.aside_bytes());
    bench.Run([&](Stream& stream) -> absl::Status {
      if (way == Way::kApart) {
        const Tensor ignored = is_plain ? Tensor{} : dz;
        RETURN_IF_ERROR(op.BackwardInput(stream, dy, y, z, w, ignored, dx, workspace));
        return op.BackwardWeight(stream, x, dz, dw, db, adds, workspace);
      }
      RETURN_IF_ERROR(op.Backward(stream, dy, x, y, z, w, dz, dx, dw, db, adds, workspace,
                                  way == Way::kAside ? aside : nullptr));
      if (way == Way::kAtOnce) return absl::OkStatus();
      // The next operations use the workspace.
      RETURN_IF_ERROR(stream.Copy(workspace, garbage, op.workspace_bytes()));
      return stream.JoinAside();
    });
    return std::array{dz, dx, dw, db};
  });
}

void LinearTest::ExpectBackward(bool adds) const {
  const auto apart = Backward(Way::kApart, adds);
  const auto& [dz, dx, dw, db] = apart;
  ExpectInputGradient(dz, dx);
  ExpectWeightGradient(dz, dw, db, adds);
  for (const Way way : {Way::kAtOnce, Way::kAside}) {
    SCOPED_TRACE(way == Way::kAside ? "aside" : "at once");
    const auto actual = Backward(way, adds);
    for (size_t i = 0; i < apart.size(); ++i) EXPECT_THAT(actual[i], HasTheBitsOf(apart[i])) << i;
  }
}

void LinearTest::ExpectInputGradient(const OpValues& dz, const OpValues& dx) const {
  const Vector dy = ToDouble(dy_), z = ToDouble(z_), w = ToDouble(w_);
  const auto expected = reference::LinearBackwardInput(shape(), dy, z, w);
  const Activation activation = shape().activation;
  Vector dz_bound, dz_largest;
  for (size_t k = 0; k < dy.size(); ++k) {
    const double exact = expected.dz[k];
    const double slope_error = ActivationDerivativeBound(activation, z[k], type());
    dz_bound.push_back(
        IsExact(activation)
            ? 0.0
            : StoredBound(exact, std::fabs(dy[k]) * slope_error + Gamma(1) * std::fabs(exact),
                          type()));
    dz_largest.push_back(std::fabs(exact) + dz_bound[k]);
  }
  const auto times_w = [&, w_abs = Magnitudes(w)](const Vector& values) {
    return reference::LinearBackwardInput(Plain(shape()), values, z, w_abs).dx;
  };
  const Vector propagated = times_w(dz_bound), sum_abs = times_w(dz_largest);
  Vector dx_bound;
  for (size_t k = 0; k < sum_abs.size(); ++k) {
    dx_bound.push_back(propagated[k] + ProductBound(shape().outputs, sum_abs[k]));
  }
  EXPECT_THAT(dz, CloseTo(expected.dz, dz_bound));
  EXPECT_THAT(dx, Near(expected.dx, dx_bound));
}

void LinearTest::ExpectWeightGradient(const OpValues& dz, const OpValues& dw, const OpValues& db,
                                      bool adds) const {
  const Vector x = ToDouble(x_);
  auto expected = reference::LinearBackwardWeight(shape(), x, dz);
  auto sum_abs = reference::LinearBackwardWeight(shape(), Magnitudes(x), Magnitudes(dz));
  if (adds) {
    expected.dw = reference::Add(expected.dw, ToDouble(dw_));
    expected.db = reference::Add(expected.db, ToDouble(db_));
    sum_abs.dw = reference::Add(sum_abs.dw, Magnitudes(ToDouble(dw_)));
    sum_abs.db = reference::Add(sum_abs.db, Magnitudes(ToDouble(db_)));
  }
  // One more term for the previous value, one more rounding if a sum is stored in between.
  const auto bounds = [&](Vector sums) {
    for (double& sum : sums) sum = ProductBound(shape().rows + 2, sum);
    return sums;
  };
  EXPECT_THAT(dw, CloseTo(expected.dw, bounds(sum_abs.dw)));
  if (!shape().has_bias) return;
  EXPECT_THAT(db, CloseTo(expected.db, bounds(sum_abs.db)));
}

}  // namespace stagecoach::testing
