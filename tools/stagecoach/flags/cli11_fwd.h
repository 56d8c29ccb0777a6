#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_CLI11_FWD_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_CLI11_FWD_H_

// CLI11 takes seconds to compile: only sources that register flags include it.
namespace CLI {  // NOLINT(readability-identifier-naming): of CLI11
class App;
}  // namespace CLI

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_CLI11_FWD_H_
