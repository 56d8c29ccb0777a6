#ifndef STAGECOACH_TESTS_TOOLS_SCOPED_VARIABLE_H_
#define STAGECOACH_TESTS_TOOLS_SCOPED_VARIABLE_H_

#include <cstdlib>
#include <optional>
#include <string>

namespace stagecoach::tools {

// Sets a variable of the environment, and so of the programs started meanwhile, to `value` for its
// lifetime. For tests with one thread.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() {
    if (old_.has_value()) {
      setenv(name_, old_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_SCOPED_VARIABLE_H_
