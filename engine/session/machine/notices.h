#ifndef STAGECOACH_ENGINE_SESSION_MACHINE_NOTICES_H_
#define STAGECOACH_ENGINE_SESSION_MACHINE_NOTICES_H_

#include <functional>
#include <memory>
#include <string>

namespace stagecoach::engine {

// Tells the caller of a session what it should know besides results and errors. Any of the
// functions may be null: then nobody is told.
struct Notices {
  // A line about the run as a whole, which every process of it may produce.
  std::function<void(const std::string& line)> on_notice;
  // A line about this process.
  std::function<void(const std::string& line)> on_rank_notice;
  // Work begins that may take long, such as "reads data.csv (1.2 GB)". It ends when the returned
  // object is destroyed.
  std::function<std::shared_ptr<void>(const std::string& work)> on_work;

  void Tell(const std::string& line) const {
    if (on_notice != nullptr) on_notice(line);
  }
  void TellOfRank(const std::string& line) const {
    if (on_rank_notice != nullptr) on_rank_notice(line);
  }
  [[nodiscard]] std::shared_ptr<void> BeginWork(const std::string& work) const {
    return on_work == nullptr ? nullptr : on_work(work);
  }
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_MACHINE_NOTICES_H_
