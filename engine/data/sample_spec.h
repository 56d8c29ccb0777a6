#ifndef STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_
#define STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_

#include <cstdint>
#include <string>

#include "kernels/tensor.h"

// What a sample consists of: what data sets have, and models and losses take.
namespace stagecoach::engine {

// What a loss compares a model's outputs with, for one sample.
struct TargetSpec {
  enum class Kind : uint8_t {
    kNone,     // nothing: inference
    kClasses,  // int32 labels, each in [0, classes)
    kValues,   // float32 numbers
  };
  Kind kind = Kind::kNone;
  // [] for one label or number a sample; [T] for one at each of T positions.
  kernels::Shape shape;
  int64_t classes = 0;  // of kClasses

  static TargetSpec ClassLabel(int64_t classes) { return {Kind::kClasses, {}, classes}; }

  kernels::DType type() const;
  int64_t bytes() const;  // of one sample's
  friend bool operator==(const TargetSpec&, const TargetSpec&) = default;
};

// "no targets", "one label of 10 classes", "labels of 10 classes, of shape [128]", "float targets
// of shape [3]": what data "has" and a loss "takes".
std::string Describe(const TargetSpec& target);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_
