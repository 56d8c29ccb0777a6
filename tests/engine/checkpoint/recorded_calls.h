#ifndef STAGECOACH_TESTS_ENGINE_CHECKPOINT_RECORDED_CALLS_H_
#define STAGECOACH_TESTS_ENGINE_CHECKPOINT_RECORDED_CALLS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/system/system_calls.h"

namespace stagecoach::engine {

// Performs system calls and records what they did, so that the state of the disk after a crash of
// the machine can be produced after any of them. Paths begin with `root`.
class RecordedCalls final : public base::SystemCalls {
 public:
  explicit RecordedCalls(std::string root) : root_(std::move(root)) {}

  int MakeFolder(const char* path) override;
  int Open(const char* path, int flags) override;
  ssize_t WriteAt(int file, const void* data, size_t bytes, off_t offset) override;
  int Sync(int file) override;
  void StartSync(int /*file*/) override {}
  int Close(int file) override;
  int Rename(const char* from, const char* to) override;
  int Exchange(const char* one, const char* other) override;
  int RemoveFile(const char* path) override;
  int RemoveFolder(const char* path) override;

  int64_t calls() const { return static_cast<int64_t>(events_.size()); }

  // What may be on the disk of a machine that crashes after `calls` of them. Everything synced is
  // there. Of the rest there may be
  enum class Unsynced : uint8_t {
    kNothing,
    kAll,
    kNamesOnly,  // entries of folders, but not what was written to the files
    kHalf,       // a part that depends on the call and `seed`
  };
  // Produces that state in a folder, which is empty; `before` is what the root held at the
  // beginning.
  void MakeCrashed(int64_t calls, Unsynced unsynced, uint64_t seed, const std::string& before,
                   const std::string& to) const;

 private:
  struct Event {
    enum class Kind : uint8_t {
      kMakeFolder,
      kCreate,
      kWrite,
      kSyncFile,
      kSyncFolder,
      kRename,
      kExchange,
      kRemove,
      kNothing
    } kind;
    std::string path, other;
    int64_t offset = 0;
    std::string bytes;
  };

  const std::string root_;
  std::vector<Event> events_;
  std::map<int, std::string> paths_;  // of open files and folders
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_CHECKPOINT_RECORDED_CALLS_H_
