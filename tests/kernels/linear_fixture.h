#ifndef STAGECOACH_TESTS_KERNELS_LINEAR_FIXTURE_H_
#define STAGECOACH_TESTS_KERNELS_LINEAR_FIXTURE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/linear.h"
#include "kernels/tensor.h"
#include "tests/kernels/op_harness.h"

namespace stagecoach::testing {

// A linear layer and its operands. y and z are consistent with each other but not with x: backward
// is tested on operands of its own.
class LinearTest : public OpTest<kernels::LinearShape> {
 protected:
  LinearTest();

  // Against the reference, within bounds that follow from the arithmetic.
  void ExpectForward() const;
  // Input and weight gradients, those of weights written or added to what is there; by two calls or
  // one, with the product for dw aside or not, and dz in the memory of z or not: of the same bits.
  void ExpectBackward(bool adds) const;

  // dz, and dx if it is asked for.
  std::array<OpValues, 2> BackwardInput(bool wants_dx) const;
  // dw and db. In all rounds but the last, what is issued may be recorded.
  std::array<OpValues, 2> ReplayBackwardWeight(int rounds) const;

  bool keeps_z() const { return KeepsZ(shape().activation); }
  kernels::Shape inputs() const { return {shape().rows, shape().inputs}; }
  kernels::Shape outputs() const { return {shape().rows, shape().outputs}; }
  kernels::Shape weights() const { return {shape().inputs, shape().outputs}; }
  kernels::Shape bias() const { return {shape().outputs}; }

 private:
  enum class Way : uint8_t { kApart, kAtOnce, kAside };
  // dz, dx, dw and db.
  std::array<OpValues, 4> Backward(Way way, bool adds) const;
  void ExpectInputGradient(const OpValues& dz, const OpValues& dx) const;
  // Of the dz that was computed.
  void ExpectWeightGradient(const OpValues& dz, const OpValues& dw, const OpValues& db,
                            bool adds) const;
  // Of a sum of `terms` products of operands, where `sum_abs` is the sum of their absolute values.
  double ProductBound(int64_t terms, double sum_abs) const;

  // What the derivative is known by: y unless z is kept.
  kernels::Tensor KnownY(OpBench& bench) const;
  kernels::Tensor KnownZ(OpBench& bench) const;

  std::vector<float> x_, w_, b_, dy_, z_, y_, dw_, db_;
};

inline std::string NameOfLinear(const kernels::LinearShape& shape) {
  return absl::StrCat(shape.rows, "x", shape.inputs, "x", shape.outputs, "_",
                      kernels::ActivationName(shape.activation), shape.has_bias ? "" : "_no_bias");
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_LINEAR_FIXTURE_H_
