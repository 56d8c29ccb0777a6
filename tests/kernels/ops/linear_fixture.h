#ifndef STAGECOACH_TESTS_KERNELS_OPS_LINEAR_FIXTURE_H_
#define STAGECOACH_TESTS_KERNELS_OPS_LINEAR_FIXTURE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/ops/linear.h"
#include "kernels/tensor.h"
#include "tests/kernels/ops/op_harness.h"

namespace stagecoach::testing {

// A linear layer and its operands. y and z are consistent with each other but not with x: backward
// is tested on its own operands. A quantized weight is passed as it is stored.
class LinearTest : public OpTest<kernels::LinearShape> {
 protected:
  LinearTest();

  // Compares with the reference, within bounds that follow from the arithmetic.
  void ExpectForward() const;
  // Compares input and weight gradients, the latter overwritten or accumulated; by two calls or
  // one, with the product for dw on the side stream or not, and dz in the memory of z or not: the
  // bits must be the same.
  void ExpectBackward(bool adds) const;

  // Returns y of the rows from the first one on, of an operation for just these, whose rows are
  // independent.
  OpValues ForwardOfRows(int64_t first, int64_t rows) const;
  // Returns dz, and dx if requested.
  std::array<OpValues, 2> BackwardInput(bool wants_dx) const;
  // Returns dw and db. In all rounds but the last, the issued work may be recorded.
  std::array<OpValues, 2> ReplayBackwardWeight(int rounds) const;

  bool keeps_z() const { return KeepsZ(shape().activation); }
  kernels::Shape inputs() const { return {shape().rows, shape().inputs}; }
  kernels::Shape outputs() const { return {shape().rows, shape().outputs}; }
  kernels::Shape weights() const { return {shape().inputs, shape().outputs}; }
  kernels::Shape bias() const { return {shape().outputs}; }

 private:
  enum class Way : uint8_t { kApart, kAtOnce, kAside };
  // Returns dz, dx, dw and db.
  std::array<OpValues, 4> Backward(Way way, bool adds) const;
  void ExpectInputGradient(const OpValues& dz, const OpValues& dx) const;
  // Compares with the gradients of the dz that was computed.
  void ExpectWeightGradient(const OpValues& dz, const OpValues& dw, const OpValues& db,
                            bool adds) const;
  // Returns the bound of a sum of `terms` products of operands, where `sum_abs` is the sum of their
  // absolute values.
  double ProductBound(int64_t terms, double sum_abs) const;

  // Return what the derivative is computed from: y unless z is kept.
  kernels::Tensor KnownY(OpBench& bench) const;
  kernels::Tensor KnownZ(OpBench& bench) const;
  kernels::Tensor Weight(OpBench& bench) const;

  std::vector<float> x_, w_, b_, dy_, z_, y_, dw_, db_;
  std::vector<std::byte> stored_;  // w_ if it is quantized
};

inline std::string NameOfLinear(const kernels::LinearShape& shape) {
  std::string name =
      absl::StrCat(shape.rows, "x", shape.inputs, "x", shape.outputs, "_",
                   kernels::ActivationName(shape.activation), shape.has_bias ? "" : "_no_bias");
  if (!shape.quantized.has_value()) return name;
  absl::StrAppend(&name, "_", QuantizationName(shape.quantized->kind));
  if (!shape.quantized->parts.empty()) {
    absl::StrAppend(&name, "_in_", shape.quantized->parts.size(), "_parts");
  }
  return absl::StrReplaceAll(name, {{"-", "_"}});
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_OPS_LINEAR_FIXTURE_H_
