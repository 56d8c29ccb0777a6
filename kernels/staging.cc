#include "kernels/staging.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/system/futex.h"

namespace stagecoach::kernels {
namespace {

// How many buffers the device may have: one that it is copying, and one to continue with.
constexpr size_t kMostCopying = 2;

// A queue between threads. Thread-safe.
template <typename T>
class Channel {
 public:
  void Push(T item) {
    {
      base::MutexLock lock(mutex_);
      items_.push_back(std::move(item));
    }
    Announce();
  }
  // Ends the queue: nothing more comes, and nobody waits any longer.
  void Close() {
    {
      base::MutexLock lock(mutex_);
      is_closed_ = true;
    }
    Announce();
  }

  // Returns nothing if the queue is empty, or, if `waits`, only once it is also closed.
  std::optional<T> Pop(bool waits) {
    for (;;) {
      const uint32_t seen = changes_.load(std::memory_order_acquire);
      {
        base::MutexLock lock(mutex_);
        if (!items_.empty()) {
          T item = std::move(items_.front());
          items_.pop_front();
          return item;
        }
        if (is_closed_ || !waits) return std::nullopt;
      }
      static_cast<void>(base::WaitWhileEqual(changes_, seen, base::Deadline::Never()));
    }
  }

 private:
  void Announce() {
    changes_.fetch_add(1, std::memory_order_release);
    base::WakeAll(changes_);
  }

  base::Mutex mutex_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint32_t> changes_{0};
};

// The buffers, by number.
class Ring {
 public:
  static absl::StatusOr<Ring> Create(Device& device, int64_t bytes, const StagingOptions& options) {
    constexpr int64_t kPage = 4096;
    const int64_t rounded = (std::max<int64_t>(bytes, 1) + kPage - 1) / kPage * kPage;
    const int64_t each = std::min(options.buffer_bytes, rounded);
    const auto count =
        static_cast<int>(std::min<int64_t>(options.buffers, (rounded - 1) / each + 1));
    ASSIGN_OR_RETURN(HostBuffer memory, device.AllocateHost(count * each));
    ASSIGN_OR_RETURN(std::unique_ptr<Timeline> copied, device.CreateTimeline(count));
    return Ring(device.stream(), std::move(memory), std::move(copied), each, count);
  }

  int size() const { return count_; }
  absl::Span<std::byte> buffer(int number) const {
    return {memory_.data() + number * each_, static_cast<size_t>(each_)};
  }
  Stream& stream() const { return stream_; }

  // Marks, in the device's order, that the copies of that buffer have been issued.
  absl::Status Mark(int number) {
    copying_.push_back(number);
    return copied_->Mark(number);
  }
  size_t copying() const { return copying_.size(); }
  // Waits for the copies of the buffer that was marked first.
  absl::StatusOr<int> WaitForFirst() {
    const int first = copying_.front();
    RETURN_IF_ERROR(copied_->Wait(first));
    copying_.pop_front();
    return first;
  }

 private:
  Ring(Stream& stream, HostBuffer memory, std::unique_ptr<Timeline> copied, int64_t each, int count)
      : stream_(stream),
        memory_(std::move(memory)),
        copied_(std::move(copied)),
        each_(each),
        count_(count) {}

  Stream& stream_;
  HostBuffer memory_;
  std::unique_ptr<Timeline> copied_;
  int64_t each_;
  int count_;
  std::deque<int> copying_;
};

int ThreadsFor(const StagingOptions& options, const Ring& ring, int tasks) {
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min({options.threads, ring.size(), tasks, processors}));
}

// Starts up to `count` threads, as many as the system allows.
std::vector<std::thread> StartThreads(int count, const std::function<void()>& work) {
  std::vector<std::thread> threads;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {  // the system allows no more
  }
  return threads;
}

absl::Status NoThread() {
  return absl::ResourceExhaustedError("the system refused a thread that copies");
}

class Uploading {
 public:
  using Fill = absl::FunctionRef<absl::Status(int, Uploader&)>;

  Uploading(Ring& ring, int sources, Fill fill) : ring_(ring), sources_(sources), fill_(fill) {}

  absl::Status Run(int threads) {
    for (int i = 0; i < ring_.size(); ++i) free_.Push(i);
    working_.store(threads);
    std::vector<std::thread> workers = StartThreads(threads, [this] { Work(); });
    if (workers.empty()) return NoThread();
    const int missing = threads - static_cast<int>(workers.size());
    if (missing > 0 && working_.fetch_sub(missing) == missing) filled_.Close();
    const absl::Status issued = Issue();
    free_.Close();
    for (std::thread& worker : workers) worker.join();
    RETURN_IF_ERROR(issued);
    base::MutexLock lock(mutex_);
    return error_;
  }

 private:
  struct Filled {
    int buffer = 0;
    std::vector<UploadPart> parts;
  };

  class Thread final : public Uploader {
   public:
    explicit Thread(Uploading& of) : of_(of) {}
    // The contents of the last buffer must not wait for more.
    ~Thread() override {
      if (!filled_.parts.empty()) of_.filled_.Push(std::move(filled_));
    }

    absl::StatusOr<absl::Span<std::byte>> Space() override {
      if (space_.empty()) {
        const std::optional<int> buffer = of_.free_.Pop(/*waits=*/true);
        if (!buffer.has_value()) return absl::CancelledError("the device has failed");
        filled_ = {.buffer = *buffer, .parts = {}};
        space_ = of_.ring_.buffer(*buffer);
      }
      return space_;
    }
    void Add(int64_t bytes, absl::Span<const UploadPart> parts) override {
      filled_.parts.insert(filled_.parts.end(), parts.begin(), parts.end());
      space_.remove_prefix(static_cast<size_t>(bytes));
      if (space_.empty()) of_.filled_.Push(std::exchange(filled_, {}));
    }

   private:
    Uploading& of_;
    Filled filled_;
    absl::Span<std::byte> space_;  // of its buffer; empty if it has none
  };

  void Work() {
    {
      Thread thread(*this);
      for (int source = 0; (source = NextSource()) < sources_;) {
        const absl::Status status = fill_(source, thread);
        if (!status.ok()) Fail(source, status);
      }
    }
    if (working_.fetch_sub(1) == 1) filled_.Close();
  }

  int NextSource() {
    base::MutexLock lock(mutex_);
    return error_.ok() ? next_source_++ : sources_;
  }

  // Records the error of a source. All sources before one that has started have started as well, so
  // the first that fails is the same whatever the threads do.
  void Fail(int source, const absl::Status& status) {
    base::MutexLock lock(mutex_);
    if (!error_.ok() && source > failed_source_) return;
    failed_source_ = source;
    error_ = status;
  }

  absl::Status Issue() {
    for (;;) {
      const bool has_room = ring_.copying() < kMostCopying;
      std::optional<Filled> filled;
      if (has_room) filled = filled_.Pop(/*waits=*/ring_.copying() == 0);
      if (filled.has_value()) {
        for (const UploadPart& part : filled->parts) {
          RETURN_IF_ERROR(ring_.stream().CopyFromHost(part.to, part.from, part.bytes));
        }
        RETURN_IF_ERROR(ring_.Mark(filled->buffer));
        continue;
      }
      if (ring_.copying() == 0) return absl::OkStatus();
      ASSIGN_OR_RETURN(const int buffer, ring_.WaitForFirst());
      free_.Push(buffer);
    }
  }

  Ring& ring_;
  const int sources_;
  const Fill fill_;
  Channel<int> free_;
  Channel<Filled> filled_;
  std::atomic<int> working_{0};
  base::Mutex mutex_;
  int next_source_ ABSL_GUARDED_BY(mutex_) = 0;
  int failed_source_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

class Downloading {
 public:
  Downloading(Ring& ring, absl::Span<const DownloadPiece> pieces) : ring_(ring), pieces_(pieces) {}

  absl::Status Run(int threads) {
    contents_.resize(static_cast<size_t>(ring_.size()));
    for (int i = 0; i < ring_.size(); ++i) free_.Push(i);
    std::vector<std::thread> workers = StartThreads(threads, [this] { Empty(); });
    if (workers.empty()) return NoThread();
    const absl::Status issued = Issue();
    copied_.Close();
    for (std::thread& worker : workers) worker.join();
    return issued;
  }

 private:
  struct Part {
    void* to;
    const std::byte* from;
    int64_t bytes;
  };

  void Empty() {
    while (const std::optional<int> buffer = copied_.Pop(/*waits=*/true)) {
      for (const Part& part : contents_[static_cast<size_t>(*buffer)]) {
        std::memcpy(part.to, part.from, static_cast<size_t>(part.bytes));
      }
      free_.Push(*buffer);
    }
  }

  absl::Status Issue() {
    for (;;) {
      const bool has_room = next_ < pieces_.size() && ring_.copying() < kMostCopying;
      std::optional<int> buffer;
      if (has_room) buffer = free_.Pop(/*waits=*/ring_.copying() == 0);
      if (buffer.has_value()) {
        RETURN_IF_ERROR(FillFrom(*buffer));
        RETURN_IF_ERROR(ring_.Mark(*buffer));
        continue;
      }
      if (ring_.copying() == 0) return absl::OkStatus();
      ASSIGN_OR_RETURN(const int copied, ring_.WaitForFirst());
      copied_.Push(copied);
    }
  }

  // Issues copies of the next pieces until the buffer is full.
  absl::Status FillFrom(int buffer) {
    std::vector<Part>& parts = contents_[static_cast<size_t>(buffer)];
    parts.clear();
    absl::Span<std::byte> space = ring_.buffer(buffer);
    while (next_ < pieces_.size() && !space.empty()) {
      const DownloadPiece& piece = pieces_[next_];
      const int64_t bytes = std::min(piece.bytes - done_, std::ssize(space));
      if (bytes > 0) {  // an empty tensor may have no address
        const auto* const from = static_cast<const std::byte*>(piece.from) + done_;
        RETURN_IF_ERROR(ring_.stream().CopyToHost(space.data(), from, bytes));
        parts.push_back({static_cast<std::byte*>(piece.to) + done_, space.data(), bytes});
        space.remove_prefix(static_cast<size_t>(bytes));
        done_ += bytes;
      }
      if (done_ < piece.bytes) continue;
      ++next_;
      done_ = 0;
    }
    return absl::OkStatus();
  }

  Ring& ring_;
  const absl::Span<const DownloadPiece> pieces_;
  size_t next_ = 0;   // the current piece, and
  int64_t done_ = 0;  // how much of it has been issued
  Channel<int> free_, copied_;
  std::vector<std::vector<Part>> contents_;  // by buffer; accessed only by the holder of the buffer
};

}  // namespace

absl::Status Uploader::Copy(void* to, const void* from, int64_t bytes) {
  for (int64_t done = 0; done < bytes;) {
    ASSIGN_OR_RETURN(const absl::Span<std::byte> space, Space());
    const int64_t part = std::min(bytes - done, std::ssize(space));
    std::memcpy(space.data(), static_cast<const std::byte*>(from) + done,
                static_cast<size_t>(part));
    Add(part, {{static_cast<std::byte*>(to) + done, space.data(), part}});
    done += part;
  }
  return absl::OkStatus();
}

absl::Status Upload(Device& device, int64_t bytes, int sources,
                    absl::FunctionRef<absl::Status(int source, Uploader& uploader)> fill,
                    const StagingOptions& options) {
  if (sources == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(Ring ring, Ring::Create(device, bytes, options));
  return Uploading(ring, sources, fill).Run(ThreadsFor(options, ring, sources));
}

absl::Status Download(Device& device, absl::Span<const DownloadPiece> pieces,
                      const StagingOptions& options) {
  int64_t bytes = 0;
  for (const DownloadPiece& piece : pieces) {
    bytes += piece.bytes;
    if (!device.memory_is_host()) continue;
    RETURN_IF_ERROR(device.stream().CopyToHost(piece.to, piece.from, piece.bytes));
  }
  if (bytes == 0 || device.memory_is_host()) return absl::OkStatus();
  ASSIGN_OR_RETURN(Ring ring, Ring::Create(device, bytes, options));
  return Downloading(ring, pieces).Run(ThreadsFor(options, ring, ring.size()));
}

}  // namespace stagecoach::kernels
