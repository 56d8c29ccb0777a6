#ifndef STAGECOACH_ENGINE_DATA_IMAGES_READ_AHEAD_H_
#define STAGECOACH_ENGINE_DATA_IMAGES_READ_AHEAD_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Reads rows of a data set before they are asked for, on threads of its own. What a row contains
// does not depend on whether it was announced, or on the number of threads: a row that was not is
// read when it is asked for. Thread-safe.
class ReadAhead {
 public:
  // Reads a row, which takes a while; called concurrently.
  using ReadFunction = std::function<absl::Status(int64_t row, absl::Span<std::byte> out)>;

  // At most `most_rows` of `row_bytes` are held. The threads start with the first announcement.
  ReadAhead(int threads, int64_t row_bytes, int64_t most_rows, ReadFunction read);
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;
  ~ReadAhead();

  // Announces rows that will be asked for, in that order. If there are too many, earlier ones that
  // were not asked for are dropped, and then the last ones of these are ignored.
  void Announce(absl::Span<const int64_t> rows);

  // Reads a row, and forgets it. `out` has row_bytes.
  absl::Status Read(int64_t row, absl::Span<std::byte> out);

 private:
  enum class State { kQueued, kReading, kDone };
  struct Entry {
    State state = State::kQueued;
    std::vector<std::byte> bytes;
    absl::Status status;
  };

  void Work();  // on a thread
  void DropAllBut(absl::Span<const int64_t> rows);
  void StartThreads();

  const int threads_;
  const int64_t row_bytes_;
  const int64_t most_rows_;
  const ReadFunction read_;

  std::mutex mutex_;  // of all below
  std::condition_variable has_work_, has_row_;
  std::unordered_map<int64_t, Entry> entries_;
  std::deque<int64_t> queue_;  // may have rows that are no longer queued
  std::vector<std::thread> workers_;
  bool is_over_ = false;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_IMAGES_READ_AHEAD_H_
