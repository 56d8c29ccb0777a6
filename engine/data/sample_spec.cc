#include "engine/data/sample_spec.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

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

}  // namespace stagecoach::engine
