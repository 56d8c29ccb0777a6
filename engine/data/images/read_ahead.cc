#include "engine/data/images/read_ahead.h"

#include <algorithm>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace stagecoach::engine {

ReadAhead::ReadAhead(int threads, int64_t row_bytes, int64_t most_rows, ReadFunction read)
    : threads_(threads), row_bytes_(row_bytes), most_rows_(most_rows), read_(std::move(read)) {}

ReadAhead::~ReadAhead() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  has_work_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ReadAhead::StartThreads() {
  while (std::ssize(workers_) < threads_) {
    try {
      workers_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      return;  // who asks for a row reads it
    }
  }
}

void ReadAhead::DropAllBut(absl::Span<const int64_t> rows) {
  const std::unordered_set<int64_t> wanted(rows.begin(), rows.end());
  std::erase_if(entries_, [&](const auto& entry) {
    return !wanted.contains(entry.first) && entry.second.state != State::kReading;
  });
}

void ReadAhead::Announce(absl::Span<const int64_t> rows) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::ssize(entries_) + std::ssize(rows) > most_rows_) DropAllBut(rows);
    for (const int64_t row : rows) {
      if (std::ssize(entries_) >= most_rows_) break;
      if (entries_.try_emplace(row).second) queue_.push_back(row);
    }
    if (workers_.empty() && !queue_.empty()) StartThreads();
  }
  has_work_.notify_all();
}

absl::Status ReadAhead::Read(int64_t row, absl::Span<std::byte> out) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto found = entries_.find(row);
  if (found == entries_.end() || found->second.state == State::kQueued) {
    if (found != entries_.end()) entries_.erase(found);
    lock.unlock();
    return read_(row, out);
  }
  // Others may ask for the same row, and take it first.
  const auto is_ready = [&] {
    const auto entry = entries_.find(row);
    return entry == entries_.end() || entry->second.state == State::kDone;
  };
  has_row_.wait(lock, is_ready);
  auto taken = entries_.extract(row);
  lock.unlock();
  if (taken.empty()) return read_(row, out);
  const Entry& entry = taken.mapped();
  std::copy(entry.bytes.begin(), entry.bytes.end(), out.begin());
  return entry.status;
}

void ReadAhead::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    has_work_.wait(lock, [&] { return is_over_ || !queue_.empty(); });
    if (is_over_) return;
    const int64_t row = queue_.front();
    queue_.pop_front();
    const auto found = entries_.find(row);
    if (found == entries_.end() || found->second.state != State::kQueued) continue;
    found->second.state = State::kReading;
    lock.unlock();
    std::vector<std::byte> bytes(static_cast<size_t>(row_bytes_));
    absl::Status status = read_(row, absl::MakeSpan(bytes));
    lock.lock();
    Entry& entry = entries_[row];
    entry.bytes = std::move(bytes);
    entry.status = std::move(status);
    entry.state = State::kDone;
    has_row_.notify_all();
  }
}

}  // namespace stagecoach::engine
