#include "engine/data/sample_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/error_class.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

using kernels::DType;

DType TargetSpec::type() const { return kind == Kind::kClasses ? DType::kInt32 : DType::kFloat32; }

int64_t TargetSpec::bytes() const {
  return kind == Kind::kNone ? 0 : shape.elements() * SizeOf(type());
}

std::string Describe(const TargetSpec& target) {
  const bool is_one = target.shape.rank() == 0;
  const std::string shape = absl::StrCat("of shape ", target.shape.ToString());
  switch (target.kind) {
    case TargetSpec::Kind::kNone:
      return "no targets";
    case TargetSpec::Kind::kClasses:
      return is_one ? absl::StrCat("one label of ", target.classes, " classes")
                    : absl::StrCat("labels of ", target.classes, " classes, ", shape);
    case TargetSpec::Kind::kValues:
      return is_one ? "one float target" : absl::StrCat("float targets ", shape);
  }
  base::PrintAndAbort(__FILE__, __LINE__, "Describe", "unknown kind of target");
}

namespace {

// Checks whether a model that is fed numbers or, with a vocabulary, ids can be fed this.
absl::Status CheckInput(const TensorSpec& data, const kernels::Shape& input, int64_t vocabulary) {
  if (data.has_ids() != (vocabulary > 0)) {
    return base::DataError(absl::StrCat(
        "the data's input \"", data.name, "\" is of ",
        data.has_ids() ? "ids; the model takes numbers" : "numbers; the model takes ids"));
  }
  // With another rank, the same numbers may stand for something else: pixels for features.
  const bool are_images = data.shape.rank() > 1 && data.shape.rank() == input.rank();
  if (data.shape != input && (data.has_ids() || are_images)) {
    return base::DataError(absl::StrCat("the data has ", data.has_ids() ? "ids" : "images",
                                        " of shape ", data.shape.ToString(), "; the model takes ",
                                        input.ToString()));
  }
  if (!data.has_ids()) return absl::OkStatus();
  if (data.vocabulary <= vocabulary) return absl::OkStatus();
  return base::DataError(absl::StrCat("the data has ids of a vocabulary of ", data.vocabulary,
                                      "; the model takes ids of ", vocabulary));
}

}  // namespace

SampleSpec TokenSpec(int64_t context, int64_t vocabulary) {
  return {.inputs = {{.name = "tokens",
                      .type = kernels::DType::kInt32,
                      .shape = kernels::Shape{context},
                      .vocabulary = vocabulary}},
          .target = {.kind = TargetSpec::Kind::kClasses,
                     .shape = kernels::Shape{context},
                     .classes = vocabulary}};
}

absl::Status CheckFits(const SampleSpec& data, const kernels::Shape& input,
                       const TargetSpec& target, int64_t vocabulary, bool takes_documents) {
  if (data.has_documents && !takes_documents) {
    return base::DataError(
        "the samples of the data consist of several documents; the model takes them as one");
  }
  if (data.inputs.size() != 1) {
    const std::string names = absl::StrJoin(
        data.inputs, ", ",
        [](std::string* out, const TensorSpec& tensor) { absl::StrAppend(out, tensor.name); });
    return base::DataError(absl::StrCat("the data has ", data.inputs.size(), " inputs (", names,
                                        "); the model takes one"));
  }
  const TensorSpec& features = data.inputs.front();
  RETURN_IF_ERROR(CheckInput(features, input, vocabulary));
  // A loss that takes nothing can be run on anything.
  const bool takes_targets = target.kind != TargetSpec::Kind::kNone;
  if (takes_targets && (data.target.kind != target.kind || data.target.shape != target.shape)) {
    return base::DataError(absl::StrCat("for each sample the loss takes ", Describe(target),
                                        "; the data has ", Describe(data.target)));
  }
  const bool takes_classes = target.kind == TargetSpec::Kind::kClasses;
  if (features.shape.elements() == input.elements() &&
      (!takes_classes || data.target.classes <= target.classes)) {
    return absl::OkStatus();
  }
  if (!takes_classes) {
    return base::DataError(absl::StrCat("the data has ", features.shape.elements(),
                                        " features; the model takes ", input.elements()));
  }
  return base::DataError(absl::StrCat("the data has ", features.shape.elements(), " features and ",
                                      data.target.classes, " classes; the model takes ",
                                      input.elements(), " features and gives ", target.classes,
                                      " outputs"));
}

}  // namespace stagecoach::engine
