#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_RELAY_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_RELAY_H_

#include <cstdio>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "engine/comm/socket.h"

namespace stagecoach::tools {

// The errors that ranks of one launch have ended with.
class SaidErrors {
 public:
  // Returns whether another rank than the one that prints `line` has reported the same of itself,
  // as when all have the same flags: "stagecoach train: rank 1: --stages ...". A rank that reports
  // it again reports it anew.
  bool IsAnother(int rank, const std::string& line);

 private:
  std::map<std::string, std::set<int>> said_;  // lines without the rank, and who printed them
};

// A stream of another process, whose whole lines are passed on with a prefix.
class Relay {
 public:
  // `keeps_back` selects lines that are not passed on; may be empty.
  Relay(engine::Descriptor from, std::FILE* to, std::string prefix,
        std::function<bool(const std::string& line)> keeps_back = {})
      : from_(std::move(from)),
        to_(to),
        prefix_(std::move(prefix)),
        keeps_back_(std::move(keeps_back)) {}

  const engine::Descriptor& from() const { return from_; }
  const std::string& last_line() const { return last_line_; }

  // Passes on what there is to read; called once there is something. Closes at the end.
  void PassOn();
  // Passes on what is still in the pipe of a process that has ended, and closes.
  void Drain();

 private:
  // Passes on what came without a final newline.
  void End();
  void Write(const std::string& line);

  engine::Descriptor from_;
  std::FILE* to_;
  std::string prefix_;
  std::function<bool(const std::string& line)> keeps_back_;
  std::string rest_, last_line_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_RELAY_H_
