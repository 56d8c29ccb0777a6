#ifndef STAGECOACH_TOOLS_CLI_RELAY_H_
#define STAGECOACH_TOOLS_CLI_RELAY_H_

#include <cstdio>
#include <string>
#include <utility>

#include "engine/launch/socket.h"

namespace stagecoach::tools {

// A stream of another process, whose whole lines are passed on with a prefix.
class Relay {
 public:
  Relay(engine::Descriptor from, std::FILE* to, std::string prefix)
      : from_(std::move(from)), to_(to), prefix_(std::move(prefix)) {}

  const engine::Descriptor& from() const { return from_; }
  const std::string& last_line() const { return last_line_; }

  // Once there is something to read. Closes at the end.
  void PassOn();
  // Passes on what is still in the pipe of a process that has ended, and closes.
  void Drain();

 private:
  // Passes on what came without the end of a line.
  void End();
  void Write(const std::string& line);

  engine::Descriptor from_;
  std::FILE* to_;
  std::string prefix_;
  std::string rest_, last_line_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_RELAY_H_
