#ifndef STAGECOACH_ENGINE_NN_PARAMETER_RULES_H_
#define STAGECOACH_ENGINE_NN_PARAMETER_RULES_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/nn/parameter_table.h"

namespace stagecoach::engine {

// Sets a group of parameters apart in training, as the groups of PyTorch's optimizers do. Regular
// value type.
struct ParameterRule {
  // Matches names such as "layer 3: weight" (ModelParameter::name), in a shell's notation: * stands
  // for any text, ? for a letter, [abc] for one of these.
  std::string pattern;
  // They keep their values: they have no gradients and no states, and layers before the first that
  // is trained have no B. Nothing else may be set then.
  bool is_frozen = false;
  float rate_factor = 1.0F;  // of the learning rate
  // In place of the optimizer's, and of biases too; unset: as without the rule.
  std::optional<float> weight_decay = std::nullopt;

  friend bool operator==(const ParameterRule&, const ParameterRule&) = default;
};

// Parses "layer 0: *:frozen;*bias:lr-factor=2,weight-decay=0": for each group its pattern and,
// after the last colon, what is special about it. InvalidArgument names what is wrong.
absl::StatusOr<std::vector<ParameterRule>> ParseParameterRules(absl::string_view text);
// Returns the text that ParseParameterRules reads.
std::string ParameterRulesText(absl::Span<const ParameterRule> rules);

// The rules of a model. Thread-safe.
class ParameterRules {
 public:
  // A parameter's rule is the last that matches its name; that of tied ones is the last that
  // matches either name.
  ParameterRules(absl::Span<const ParameterRule> rules, absl::Span<const ParameterTie> ties);

  // Returns null if the parameter has none.
  const ParameterRule* Find(const std::string& name) const;
  // Returns how many of the parameters each rule is for; copies do not count.
  std::vector<int> CountsIn(const ParameterTable& parameters) const;
  // Returns InvalidArgument if a rule's pattern matches no parameter, with the nearest name, if all
  // that it matches are those of later rules, or if it changes nothing because they are frozen
  // anyway; and if no parameter is left for the optimizer.
  absl::Status Check(const ParameterTable& parameters) const;

 private:
  const std::vector<ParameterRule> rules_;
  std::vector<std::pair<std::string, std::string>> ties_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_PARAMETER_RULES_H_
