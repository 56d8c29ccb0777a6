#include "engine/comm/gloo.h"

#include <gloo/allreduce.h>
#include <gloo/context.h>
#include <gloo/math.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using gloo::transport::UnboundBuffer;
using kernels::Tensor;
using Clock = std::chrono::steady_clock;

// Blocks SIGPIPE: Gloo writes to connections that the other end may have closed.
void BlockBrokenPipeSignal() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// Turns exceptions of Gloo into a status. Their messages are places in its source, which help
// nobody.
template <typename Function>
absl::Status GuardConnection(Function function) {
  try {
    return function();
  } catch (const std::exception&) {
    return absl::UnavailableError("the connection has ended");
  }
}

// A number that strangers do not know.
constexpr size_t kTokenBytes = 16;
std::string NewToken() {
  std::string token(kTokenBytes, '\0');
  static_cast<void>(getrandom(token.data(), token.size(), 0));  // never fails for so few bytes
  return token;
}
// Connects to an address of a pair only to end a wait for a connection there.
class Knock {
 public:
  explicit Knock(const std::vector<char>& address) {
    const sockaddr_storage to = gloo::transport::tcp::Address(address).getSockaddr();
    socket_ = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const auto* const any = reinterpret_cast<const sockaddr*>(&to);
    if (socket_ >= 0)
      static_cast<void>(connect(socket_, any, sizeof(to)));  // otherwise nobody
                                                             // waits
  }
  Knock(Knock&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Knock& operator=(Knock&&) = delete;
  ~Knock() {
    if (socket_ >= 0) close(socket_);
  }

 private:
  int socket_ = -1;
};

// Initial patience for a greeting. What both ends of a connection send at once usually arrives long
// before, unless one of them is a stranger, or the machine is very busy: it doubles at each
// attempt.
constexpr absl::Duration kShortestGreeting = absl::Seconds(1);

std::chrono::milliseconds TimeLeft(base::Deadline deadline) {
  constexpr absl::Duration kLong = absl::Hours(24 * 365);
  constexpr absl::Duration kShort = absl::Milliseconds(1);  // 0 means no limit
  // Rounded up: a wait that ends before the deadline is taken for one whose peer is gone.
  const absl::Duration left = absl::Ceil(std::min(deadline.Remaining(), kLong), kShort);
  return absl::ToChronoMilliseconds(std::max(left, kShort));
}

// Returns the number by which Gloo tells messages between two processes apart.
uint64_t SlotOf(int channel, const Message& message) {
  const auto stage = static_cast<uint64_t>(static_cast<uint16_t>(message.stage.value()));
  const auto number = static_cast<uint64_t>(static_cast<uint32_t>(message.micro_batch.value()));
  return static_cast<uint64_t>(channel) << 56 | static_cast<uint64_t>(message.kind) << 52 |
         stage << 32 | number;
}

// The context of Gloo's collectives, over existing connections.
class CollectiveContext final : public gloo::Context {
 public:
  CollectiveContext(std::shared_ptr<gloo::transport::Context> context,
                    std::shared_ptr<gloo::transport::Device> device)
      : gloo::Context(context->rank, context->size) {
    transportContext_ = std::move(context);
    device_ = std::move(device);
  }
};

class Mesh final : public GlooMesh, public std::enable_shared_from_this<Mesh> {
 public:
  absl::Status Connect(const GlooOptions& options) override {
    BlockBrokenPipeSignal();
    const base::Deadline deadline = base::Deadline::After(options.deadline);
    processes_ = options.processes;
    for (absl::Duration patience = kShortestGreeting;; patience *= 2) {
      std::string told = NewToken();
      RETURN_IF_ERROR(base::Annotate(Listen(options, deadline, told),
                                     absl::StrCat("cannot listen at ", options.address)));
      ASSIGN_OR_RETURN(const std::vector<std::string> all, options.gather(told));
      // Gloo accepts whoever connects first, which may be a stranger, such as a scan of the host's
      // ports: then all listen elsewhere.
      absl::Status status = ConnectPairs(options, all);
      if (absl::IsUnavailable(status) && deadline.Expired()) {
        return absl::DeadlineExceededError(absl::StrCat("timed out ", status.message()));
      }
      RETURN_IF_ERROR(CheckNotAborted());
      ASSIGN_OR_RETURN(bool all_can, AllCan(options, status.ok()));
      if (all_can) {
        status = Greet(options, all, std::min(patience, deadline.Remaining()));
        ASSIGN_OR_RETURN(all_can, AllCan(options, status.ok()));
      }
      RETURN_IF_ERROR(CheckNotAborted());
      if (all_can) return absl::OkStatus();
    }
  }

  void Abort() override {
    base::MutexLock lock(mutex_);
    is_aborted_ = true;
    for (gloo::transport::Pair* const pair : pairs_) pair->close();
  }

  std::unique_ptr<Transport> Join(Rank rank, std::vector<int> processes, int channel) override;

  gloo::transport::Context& context() { return *context_; }
  // Returns the number in the context of a process of the mesh.
  int PlaceOf(int process) const {
    return static_cast<int>(absl::c_lower_bound(processes_, process) - processes_.begin());
  }
  const std::vector<int>& processes() const { return processes_; }

  // Sums the data; errors are Gloo's.
  absl::Status Sum(float* data, int64_t elements, std::chrono::milliseconds timeout) {
    return GuardConnection([&] {
      gloo::AllreduceOptions sum(collectives_);
      sum.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
      sum.setOutput(data, static_cast<size_t>(elements));
      sum.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      sum.setTimeout(timeout);
      gloo::allreduce(sum);
      return absl::OkStatus();
    });
  }

  // Ends all waits, including those of Sum, which has no other way: a wait that times out ends
  // those of its context (gloo/transport/tcp/unbound_buffer.cc).
  void EndWaits() {
    static_cast<void>(GuardConnection([this] {
      std::byte nothing = {};
      context_->createUnboundBuffer(&nothing, sizeof(nothing))
          ->waitRecv(std::chrono::milliseconds(1));
      return absl::OkStatus();
    }));
  }

 private:
  absl::Status IfNotAborted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return is_aborted_ ? absl::UnavailableError("connecting was ended") : absl::OkStatus();
  }
  absl::Status CheckNotAborted() {
    base::MutexLock lock(mutex_);
    return IfNotAborted();
  }

  // Returns whether all processes of the launch say yes.
  static absl::StatusOr<bool> AllCan(const GlooOptions& options, bool own) {
    ASSIGN_OR_RETURN(const std::vector<std::string> all, options.gather(own ? "yes" : "no"));
    return absl::c_all_of(all, [](const std::string& one) { return one == "yes"; });
  }

  // Returns the error of the first pair that has no connection. Tries all, and lets none of them
  // wait for this process: the pair that should connect may have been taken by a stranger.
  absl::Status ConnectPairs(const GlooOptions& options, const std::vector<std::string>& all) {
    const int own = PlaceOf(options.process);
    absl::Status first;
    for (const int process : processes_) {
      if (process == options.process) continue;
      const int other = PlaceOf(process);
      const std::string addresses = all[static_cast<size_t>(process)].substr(kTokenBytes);
      const size_t size = addresses.size() / (processes_.size() - 1);
      const auto place = static_cast<size_t>(own - (own > other ? 1 : 0));
      const std::string address = addresses.substr(place * size, size);
      const absl::Status status = GuardConnection([&] {
        context_->getPair(other)->connect({address.begin(), address.end()});
        return absl::OkStatus();
      });
      if (!status.ok()) {
        knocks_.emplace_back(std::vector<char>(address.begin(), address.end()));
        first.Update(absl::UnavailableError(
            absl::StrCat("connecting rank ", options.process, " with rank ", process)));
      }
      RETURN_IF_ERROR(CheckNotAborted());
    }
    return first;
  }

  // Shows each other process its number, and waits for their own.
  absl::Status Greet(const GlooOptions& options, const std::vector<std::string>& all,
                     absl::Duration patience) {
    constexpr uint64_t kSlot = uint64_t{3} << 56 | uint64_t{15} << 52;
    struct Greeting {
      std::string sent, received;
      std::unique_ptr<UnboundBuffer> send, receive;
    };
    const std::string own = all[static_cast<size_t>(options.process)].substr(0, kTokenBytes);
    const auto timeout = TimeLeft(base::Deadline::After(patience));
    return GuardConnection([&]() -> absl::Status {
      std::vector<Greeting> greetings(processes_.size());
      for (const int process : processes_) {
        if (process == options.process) continue;
        const int place = PlaceOf(process);
        Greeting& greeting = greetings[static_cast<size_t>(place)];
        greeting.sent = all[static_cast<size_t>(process)].substr(0, kTokenBytes);
        greeting.received.resize(kTokenBytes);
        greeting.send = context_->createUnboundBuffer(greeting.sent.data(), kTokenBytes);
        greeting.receive = context_->createUnboundBuffer(greeting.received.data(), kTokenBytes);
        greeting.send->send(place, kSlot);
        greeting.receive->recv(place, kSlot);
      }
      for (Greeting& greeting : greetings) {
        if (greeting.send == nullptr) continue;
        const bool is_done =
            greeting.send->waitSend(timeout) && greeting.receive->waitRecv(timeout);
        if (!is_done || greeting.received != own) {
          return absl::UnavailableError("a stranger has connected");
        }
      }
      return absl::OkStatus();
    });
  }

  // Adds the addresses at which the others reach this process, one for each of them, all of equally
  // many bytes.
  absl::Status Listen(const GlooOptions& options, base::Deadline deadline, std::string& told) {
    {
      base::MutexLock lock(mutex_);
      pairs_.clear();  // those of an earlier attempt
    }
    knocks_.clear();
    return GuardConnection([&] {
      if (device_ == nullptr) {
        device_ =
            gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(options.address.c_str()));
      }
      context_ =
          device_->createContext(PlaceOf(options.process), static_cast<int>(processes_.size()));
      collectives_ = std::make_shared<CollectiveContext>(context_, device_);
      // This timeout is only for connections, for which Gloo allows five times as much
      // (gloo/transport/tcp/pair.cc, waitUntilConnected).
      context_->setTimeout(TimeLeft(base::Deadline::After(deadline.Remaining() / 5)));
      base::MutexLock lock(mutex_);
      for (const int process : processes_) {
        if (process == options.process) continue;
        pairs_.push_back(context_->createPair(PlaceOf(process)).get());
        const std::vector<char> bytes = pairs_.back()->address().bytes();
        told.append(bytes.begin(), bytes.end());
      }
      return IfNotAborted();
    });
  }

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::shared_ptr<gloo::Context> collectives_;  // over context_
  std::vector<int> processes_;
  std::vector<Knock> knocks_;  // of this attempt
  base::Mutex mutex_;
  std::vector<gloo::transport::Pair*> pairs_ ABSL_GUARDED_BY(mutex_);  // of the context
  bool is_aborted_ ABSL_GUARDED_BY(mutex_) = false;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<Mesh> mesh, Rank rank, std::vector<int> processes, int channel)
      : mesh_(std::move(mesh)), rank_(rank), processes_(std::move(processes)), channel_(channel) {}

  Rank rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(processes_.size()); }

  absl::StatusOr<Ticket> PostSend(Rank to, const Message& message, const Tensor& tensor) override {
    CountSend(tensor);
    return Post(/*is_send=*/true, to, message, tensor);
  }
  absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                     const Tensor& tensor) override {
    return Post(/*is_send=*/false, from, message, tensor);
  }
  absl::StatusOr<Ticket> PostSum(const Message& message, const Tensor& tensor) override {
    STAGECOACH_CHECK(processes_ == mesh_->processes(), "a sum is of all processes of the mesh");
    RETURN_IF_ERROR(Poll());
    CountSum(tensor);
    transfers_.push_back({.message = message, .sum = tensor});
    return Last();
  }
  absl::Status Flush() override { return absl::OkStatus(); }

  absl::Status Wait(const Ticket& ticket, base::Deadline deadline) override {
    if (ticket.lane < 0) return absl::OkStatus();
    Transfer& transfer = transfers_[ticket.index];
    if (transfer.is_done) return absl::OkStatus();
    {
      base::MutexLock lock(mutex_);
      RETURN_IF_ERROR(abort_reason_);
      waiting_ = &transfer;
    }
    bool is_complete = false;
    const absl::Status status = GuardConnection([&]() -> absl::Status {
      if (transfer.buffer == nullptr) {
        BlockBrokenPipeSignal();
        RETURN_IF_ERROR(
            mesh_->Sum(transfer.sum.f32(), transfer.sum.elements(), TimeLeft(deadline)));
        is_complete = true;
        return absl::OkStatus();
      }
      UnboundBuffer& buffer = *transfer.buffer->buffer;
      is_complete = transfer.is_send ? buffer.waitSend(TimeLeft(deadline))
                                     : buffer.waitRecv(TimeLeft(deadline));
      return absl::OkStatus();
    });
    base::MutexLock lock(mutex_);
    waiting_ = nullptr;
    RETURN_IF_ERROR(abort_reason_);
    if (!status.ok()) return Explain(transfer, deadline);
    if (!is_complete) return absl::InternalError("a wait ended without a reason");
    transfer.is_done = true;
    transfer.done_at = Clock::now();
    if (transfer.buffer != nullptr) transfer.buffer->is_busy = false;
    return absl::OkStatus();
  }

  absl::StatusOr<Clock::time_point> DeliveredAt(const Ticket& ticket) override {
    return transfers_[ticket.index].done_at;
  }
  void Restart() override { transfers_.clear(); }

  absl::Status Poll() override {
    base::MutexLock lock(mutex_);
    return abort_reason_;
  }

  void Abort(const absl::Status& reason) override {
    base::MutexLock lock(mutex_);
    if (!abort_reason_.ok()) return;
    abort_reason_ = reason;
    if (waiting_ == nullptr) return;
    if (waiting_->buffer == nullptr) return mesh_->EndWaits();
    UnboundBuffer& buffer = *waiting_->buffer->buffer;
    waiting_->is_send ? buffer.abortWaitSend() : buffer.abortWaitRecv();
  }

 private:
  struct Buffer {
    std::unique_ptr<UnboundBuffer> buffer;
    bool is_busy = false;
  };
  struct Transfer {
    Buffer* buffer = nullptr;  // null: a sum
    bool is_send = false;
    Rank peer = {};
    Message message;
    Tensor sum = {};
    bool is_done = false;
    Clock::time_point done_at = {};
  };
  // The memory of a tensor, and the other end of its transfers.
  using BufferKey = std::tuple<void*, int64_t, int, bool>;

  absl::StatusOr<Ticket> Post(bool is_send, Rank peer, const Message& message,
                              const Tensor& tensor) {
    RETURN_IF_ERROR(Poll());
    BlockBrokenPipeSignal();
    Buffer* buffer = nullptr;
    RETURN_IF_ERROR(base::Annotate(GuardConnection([&] {
                                     buffer = &BufferOf(is_send, peer, tensor);
                                     const int process = mesh_->PlaceOf(ProcessOf(peer));
                                     const uint64_t slot = SlotOf(channel_, message);
                                     is_send ? buffer->buffer->send(process, slot)
                                             : buffer->buffer->recv(process, slot);
                                     return absl::OkStatus();
                                   }),
                                   absl::StrCat("rank ", ProcessOf(peer), " is gone")));
    buffer->is_busy = true;
    transfers_.push_back({buffer, is_send, peer, message});
    return Last();
  }

  Ticket Last() const { return {0, static_cast<uint32_t>(transfers_.size() - 1)}; }

  // Returns a buffer that is not in use. A run posts the same tensors as the run before.
  Buffer& BufferOf(bool is_send, Rank peer, const Tensor& tensor) {
    std::vector<std::unique_ptr<Buffer>>& known =
        buffers_[BufferKey(tensor.data, tensor.bytes(), peer.value(), is_send)];
    for (const std::unique_ptr<Buffer>& buffer : known) {
      if (!buffer->is_busy) return *buffer;
    }
    known.push_back(std::make_unique<Buffer>());
    known.back()->buffer =
        mesh_->context().createUnboundBuffer(tensor.data, static_cast<size_t>(tensor.bytes()));
    return *known.back();
  }

  absl::Status Explain(const Transfer& transfer, base::Deadline deadline) const {
    if (transfer.buffer == nullptr) {
      const std::string what = absl::StrCat("the all-reduce of the ", ToString(transfer.message));
      return deadline.Expired() ? absl::DeadlineExceededError(absl::StrCat(
                                      "rank ", ProcessOf(rank_), " timed out in ", what))
                                : absl::UnavailableError(absl::StrCat(
                                      "a rank is gone that was to take part in ", what));
    }
    const std::string what =
        absl::StrCat(transfer.is_send ? "take the " : "send the ", ToString(transfer.message));
    const int peer = ProcessOf(transfer.peer);
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", ProcessOf(rank_), " timed out waiting for rank ", peer, " to ", what));
    }
    return absl::UnavailableError(absl::StrCat("rank ", peer, " is gone, which was to ", what));
  }
  int ProcessOf(Rank rank) const { return processes_[static_cast<size_t>(rank.value())]; }

  const std::shared_ptr<Mesh> mesh_;
  const Rank rank_;
  const std::vector<int> processes_;  // index: rank
  const int channel_;
  std::map<BufferKey, std::vector<std::unique_ptr<Buffer>>> buffers_;
  std::vector<Transfer> transfers_;  // of this run
  base::Mutex mutex_;
  absl::Status abort_reason_ ABSL_GUARDED_BY(mutex_);
  Transfer* waiting_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

std::unique_ptr<Transport> Mesh::Join(Rank rank, std::vector<int> processes, int channel) {
  return std::make_unique<GlooTransport>(shared_from_this(), rank, std::move(processes), channel);
}

}  // namespace

std::shared_ptr<GlooMesh> GlooMesh::Create() { return std::make_shared<Mesh>(); }

}  // namespace stagecoach::engine
