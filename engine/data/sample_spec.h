#ifndef STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_
#define STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/tensor.h"

// Describes what a sample consists of: what data sets have, and models and losses take.
namespace stagecoach::engine {

// A tensor that every sample of a data set has.
struct TensorSpec {
  std::string name;  // "features"
  // kFloat32: numbers. kUint8: also numbers, each stored as one of 256 values (value_of_byte) until
  // it is fed to a stage. kInt32: ids, such as those of tokens.
  kernels::DType type = kernels::DType::kFloat32;
  kernels::Shape shape;              // of one sample
  std::vector<float> value_of_byte;  // 256 with kUint8; otherwise none
  int64_t vocabulary = 0;            // of ids, each in [0, vocabulary); 0 for numbers

  bool has_ids() const { return type == kernels::DType::kInt32; }
  int64_t bytes() const { return shape.elements() * SizeOf(type); }  // per sample
};

// Describes what a loss compares a model's outputs with, for one sample.
struct TargetSpec {
  enum class Kind : uint8_t {
    kNone,     // nothing: inference
    kClasses,  // int32 labels, each in [0, classes), or kernels::kNoLabel (Dataset::AnswersOf)
    kValues,   // float32 numbers
  };
  Kind kind = Kind::kNone;
  // [] for one label or number per sample; [T] for one at each of T positions.
  kernels::Shape shape;
  int64_t classes = 0;  // with kClasses

  static TargetSpec ClassLabel(int64_t classes) { return {Kind::kClasses, {}, classes}; }

  kernels::DType type() const;
  int64_t bytes() const;  // per sample
  // Returns the number of answers in a sample that can be right or wrong: its labels, or, for other
  // targets, the sample itself.
  int64_t answers() const { return kind == Kind::kClasses ? shape.elements() : 1; }
  // Returns the number of samples that as many answers amount to: a mean over samples that lack
  // some of theirs is a sum divided by this.
  double SamplesOf(int64_t some_answers) const {
    return static_cast<double>(some_answers) / static_cast<double>(answers());
  }
  friend bool operator==(const TargetSpec&, const TargetSpec&) = default;
};

// Returns "no targets", "one label of 10 classes", "labels of 10 classes, of shape [128]" or "float
// targets of shape [3]": what data "has" and a loss "takes".
std::string Describe(const TargetSpec& target);

// Describes what every sample of a data set has.
struct SampleSpec {
  std::vector<TensorSpec> inputs;
  TargetSpec target;
  // A sample's positions may belong to several documents, which a model treats as samples of their
  // own (Dataset::CopyDocuments).
  bool has_documents = false;
};

// Describes sequences of `context` ids, the targets of which are as many ids that follow them.
SampleSpec TokenSpec(int64_t context, int64_t vocabulary);

// Returns whether a model can be run on such data: a model whose loss takes `target`, and that is
// fed numbers, as many per sample as `input` has (and of that shape, if the data has one with as
// many axes, as images do), or, with a `vocabulary`, ids of that shape. There is one input. The
// vocabulary of ids is at most the model's; labels for a loss of kClasses have at most as many
// classes as its outputs tell apart; only a model that takes documents can be run on data that has
// them. InvalidArgument says what the data has and what was expected.
absl::Status CheckFits(const SampleSpec& data, const kernels::Shape& input,
                       const TargetSpec& target, int64_t vocabulary = 0,
                       bool takes_documents = false);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_SAMPLE_SPEC_H_
