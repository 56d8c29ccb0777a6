#include "engine/runtime/reduction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "base/system/futex.h"
#include "kernels/ops/ops.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {
namespace {

using kernels::Tensor;

// Interval at which a wait looks for failures elsewhere.
constexpr absl::Duration kTokenLookInterval = absl::Milliseconds(20);
constexpr int64_t kTokenBytes = 64;
// The two ends of the tokens, and the rank that each is to the other.
constexpr size_t kOwnEnd = 0, kEndBeside = 1;

// Returns the elements [begin, begin + bytes / 4) of a tensor, as far as it has them.
Tensor RangeOf(const Tensor& whole, int64_t offset_bytes, int64_t bytes) {
  const int64_t begin = std::min(offset_bytes, whole.bytes());
  const int64_t end = std::min(offset_bytes + bytes, whole.bytes());
  return {static_cast<std::byte*>(whole.data) + begin, whole.dtype,
          kernels::Shape{(end - begin) / SizeOf(whole.dtype)}};
}

// Returns the shard of a replica: without elements if the part is too small for all.
Tensor ShardOf(const Tensor& part, size_t replica, const partition::Replication& replication) {
  const partition::ByteRange range =
      partition::ShardOf(part.bytes(), 0, static_cast<int>(replica), replication);
  return RangeOf(part, range.begin, range.bytes());
}

// Returns a part of one of the sums that follow one another in memory.
Tensor PartOfSum(const Tensor& sums, size_t sum, int64_t part, int64_t part_bytes) {
  Tensor whole = sums;
  whole.data = static_cast<std::byte*>(sums.data) + static_cast<int64_t>(sum) * sums.bytes();
  return RangeOf(whole, part * part_bytes, part_bytes);
}

Rank RankOf(size_t replica) { return Rank(static_cast<int32_t>(replica)); }

Message MessageOf(Message::Kind kind, const Reduction::Task& task, int64_t part) {
  return {kind, task.stage, MicroBatch(static_cast<int32_t>(part))};
}

}  // namespace

Reduction::Reduction(Options options)
    : options_(std::move(options)),
      replicas_(static_cast<size_t>(options_.replicas->ranks())),
      own_(static_cast<size_t>(options_.replicas->rank().value())),
      work_(*this),
      done_(options_.tasks.size()) {
  const partition::Replication& replication = options_.replication;
  const int blocks = replication.blocks_per_replica();
  const bool are_whole = partition::CountSums(replication).most == 1;
  const int smallest = are_whole ? blocks : blocks & -blocks;
  for (int replica = 0; replica < replication.replicas; ++replica) {
    std::vector<size_t>& places = places_.emplace_back();
    for (const partition::BlockRange& subtree : partition::SubtreesOf(replica, replication)) {
      places.push_back(static_cast<size_t>(subtree.first / smallest));
    }
  }
  addends_.resize(static_cast<size_t>(replication.gradient_blocks / smallest));
  for (size_t i = 0; i < 2; ++i) {
    const auto sums = static_cast<size_t>(partition::CountSums(replication).most);
    scattered_[i].reserve((1 + sums) * replicas_);
    gathered_[i].reserve(2 * replicas_);
  }
}

absl::StatusOr<std::unique_ptr<Reduction>> Reduction::Create(Options options) {
  STAGECOACH_CHECK(options.replication.replicas == options.replicas->ranks(),
                   "the transport is of other replicas");
  std::unique_ptr<Reduction> reduction(new Reduction(std::move(options)));
  const Options& own = reduction->options_;
  ASSIGN_OR_RETURN(reduction->token_memory_, own.device->AllocateTable(4 * kTokenBytes));
  const auto most_tokens = static_cast<int>(own.tasks.size());
  ASSIGN_OR_RETURN(
      reduction->tokens_,
      CreateInProcessTransports(
          {.devices = {own.device, own.beside}, .max_outstanding = most_tokens, .peers = {}}));
  if (!own.beside->memory_is_host()) RETURN_IF_ERROR(reduction->WarmUp());
  return reduction;
}

absl::Status Reduction::WarmUp() {
  absl::Status status;
  kernels::Device& beside = *options_.beside;
  beside.stream().Run([&] {
    const Tensor zero = PlaceOf(Token::kStartSent);
    if (options_.replication.reduction == partition::ReductionKind::kRing) {
      for (const Task& task : options_.tasks) {
        if (!task.adds()) continue;
        ++to_flush_;
        status.Update(SumByLibrary(task));
      }
      return;
    }
    std::fill(addends_.begin(), addends_.end(), zero);
    status = beside.ops().elementwise().SumTree(beside.stream(), addends_, zero);
    std::fill(addends_.begin(), addends_.end(), Tensor());
    if (!status.ok()) return;
    status = beside.stream().Finish(base::Deadline::After(options_.deadline),
                                    [] { return absl::OkStatus(); });
  });
  return status;
}

Reduction::~Reduction() {
  ends_.store(true, std::memory_order_release);
  static_cast<void>(work_done_.Wait(base::Deadline::Never()));
}

size_t Reduction::IndexOf(StageId stage) const {
  const auto found = std::find_if(options_.tasks.begin(), options_.tasks.end(),
                                  [stage](const Task& task) { return task.stage == stage; });
  STAGECOACH_CHECK(found != options_.tasks.end(), "the stage has no REDUCE");
  return static_cast<size_t>(found - options_.tasks.begin());
}

Tensor Reduction::PlaceOf(Token token) const {
  return {token_memory_.data() + static_cast<int64_t>(token) * kTokenBytes,
          kernels::DType::kFloat32, kernels::Shape{1}};
}

absl::Status Reduction::AwaitToken(size_t end, const Transport::Ticket& ticket, Transport& polled) {
  for (;;) {
    const absl::Status status =
        tokens_[end]->Wait(ticket, base::Deadline::After(kTokenLookInterval));
    if (!absl::IsDeadlineExceeded(status)) return status;
    RETURN_IF_ERROR(Poll());  // an abort may have that code itself
    RETURN_IF_ERROR(polled.Poll());
    if (ends_.load(std::memory_order_acquire)) return absl::CancelledError("the run has ended");
  }
}

absl::Status Reduction::Start(const UpdateStep& update) {
  if (started_ == options_.tasks.size()) started_ = awaited_ = 0;  // a new run
  if (started_ == 0) {
    RETURN_IF_ERROR(work_done_.Wait(base::Deadline::After(options_.deadline)));
    RETURN_IF_ERROR(Poll());
    kernels::Stream& stream = options_.beside->stream();
    RETURN_IF_ERROR(stream.Submit(work_));
    RETURN_IF_ERROR(stream.Record(work_done_));
  }
  const Task& task = options_.tasks[started_++];
  ++to_flush_;
  if (task.shard != nullptr) task.shard->Begin(update);
  const Message message = {Message::Kind::kAddends, task.stage, MicroBatch()};
  return tokens_[kOwnEnd]
      ->PostSend(RankOf(kEndBeside), message, PlaceOf(Token::kStartSent))
      .status();
}

absl::Status Reduction::AwaitFlushes(Transport& rank_transport) {
  if (!options_.replicas->occupies_gpu()) return absl::OkStatus();
  const base::Deadline deadline = base::Deadline::After(options_.deadline);
  for (;;) {
    const uint32_t flushed = flushed_.load(std::memory_order_acquire);
    if (flushed == to_flush_) return absl::OkStatus();
    if (base::WaitWhileEqual(flushed_, flushed, base::Deadline::After(kTokenLookInterval))) {
      continue;
    }
    RETURN_IF_ERROR(Poll());
    RETURN_IF_ERROR(rank_transport.Poll());
    if (deadline.Expired()) return absl::DeadlineExceededError("a REDUCE did not start in time");
  }
}

absl::Status Reduction::Await(StageId stage, Transport& rank_transport) {
  return AwaitFirst(IndexOf(stage) + 1, rank_transport);
}

absl::Status Reduction::AwaitFirst(size_t count, Transport& rank_transport) {
  for (; awaited_ < count; ++awaited_) {
    const Message message = {Message::Kind::kSums, options_.tasks[awaited_].stage, MicroBatch()};
    ASSIGN_OR_RETURN(done_[awaited_], tokens_[kOwnEnd]->PostReceive(RankOf(kEndBeside), message,
                                                                    PlaceOf(Token::kDoneReceived)));
    RETURN_IF_ERROR(AwaitToken(kOwnEnd, done_[awaited_], rank_transport));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::chrono::steady_clock::time_point> Reduction::DoneAt(StageId stage) const {
  return tokens_[kOwnEnd]->DeliveredAt(done_[IndexOf(stage)]);
}

absl::Status Reduction::RunAlone(const Task& task) {
  ++to_flush_;
  return RunTask(task);
}

void Reduction::RunTasks() {
  const absl::Status status = PerformEach();
  if (!status.ok()) tokens_[kEndBeside]->Abort(status);
}

absl::Status Reduction::PerformEach() {
  Transport& tokens = *tokens_[kEndBeside];
  for (const Task& task : options_.tasks) {
    const Message start = {Message::Kind::kAddends, task.stage, MicroBatch()};
    const Message done = {Message::Kind::kSums, task.stage, MicroBatch()};
    ASSIGN_OR_RETURN(const Transport::Ticket ticket,
                     tokens.PostReceive(RankOf(kOwnEnd), start, PlaceOf(Token::kStartReceived)));
    RETURN_IF_ERROR(AwaitToken(kEndBeside, ticket, *options_.replicas));
    RETURN_IF_ERROR(base::Annotate(
        RunTask(task), absl::StrCat("stage ", task.stage.value(), " ", schedule::OpName(task.op))));
    RETURN_IF_ERROR(tokens.PostSend(RankOf(kOwnEnd), done, PlaceOf(Token::kDoneSent)).status());
  }
  return absl::OkStatus();
}

absl::Status Reduction::SumByLibrary(const Task& task) {
  Transport& transport = *options_.replicas;
  transport.Restart();
  ASSIGN_OR_RETURN(
      const Transport::Ticket ticket,
      transport.PostSum({Message::Kind::kSums, task.stage, MicroBatch(0)}, task.added));
  RETURN_IF_ERROR(transport.Flush());
  SayFlushed();
  RETURN_IF_ERROR(transport.Wait(ticket, base::Deadline::After(options_.deadline)));
  return options_.beside->stream().Finish(base::Deadline::After(options_.deadline),
                                          [&transport] { return transport.Poll(); });
}

absl::Status Reduction::RunTask(const Task& task) {
  if (options_.replication.reduction == partition::ReductionKind::kRing && task.adds()) {
    return SumByLibrary(task);
  }
  const partition::Replication& replication = options_.replication;
  // The number of parts performed before the transport is restarted: each takes a group, and the
  // first two one more, which brings their addends.
  constexpr int64_t kPartsAtOnce = kMostGroups - 2;
  const int64_t bytes = task.gathered.bytes();
  const int64_t part_bytes = replication.part_bytes;
  const int64_t parts = partition::ReductionParts(bytes, replication);
  const auto half = [](int64_t i) { return static_cast<size_t>(i % 2); };
  const auto scatter = [&](int64_t i) -> absl::Status {
    return task.adds() ? Scatter(task, i, scattered_[half(i)]) : absl::OkStatus();
  };
  if (parts == 0) SayFlushed();
  for (int64_t begin = 0; begin < parts; begin += kPartsAtOnce) {
    const int64_t end = std::min(begin + kPartsAtOnce, parts);
    options_.replicas->Restart();
    for (int64_t i = begin; i < std::min(begin + 2, end); ++i) {
      RETURN_IF_ERROR(scatter(i));
      RETURN_IF_ERROR(options_.replicas->Flush());
    }
    for (int64_t i = begin; i < end; ++i) {
      RETURN_IF_ERROR(WaitFor(scattered_[half(i)]));
      if (task.adds()) RETURN_IF_ERROR(AddUp(task, i));
      if (task.shard != nullptr) {
        RETURN_IF_ERROR(task.swaps ? task.shard->SwapPart(i) : task.shard->UpdatePart(i));
      }
      RETURN_IF_ERROR(WaitFor(gathered_[half(i)]));  // those of two parts before
      RETURN_IF_ERROR(Gather(PartOfSum(task.gathered, 0, i, part_bytes),
                             MessageOf(Message::Kind::kSums, task, i), gathered_[half(i)]));
      // The part that takes the place which the sums of this one have left goes into the same
      // group, since each group makes the host wait for the library.
      if (i + 2 < end) RETURN_IF_ERROR(scatter(i + 2));
      RETURN_IF_ERROR(options_.replicas->Flush());
    }
    const bool is_last = end == parts;
    if (is_last) SayFlushed();
    for (Tickets& tickets : gathered_) RETURN_IF_ERROR(WaitFor(tickets));
    if (is_last && task.shard != nullptr) RETURN_IF_ERROR(task.shard->Finish());
    RETURN_IF_ERROR(options_.beside->stream().Finish(base::Deadline::After(options_.deadline),
                                                     [this] { return options_.replicas->Poll(); }));
  }
  return absl::OkStatus();
}

std::byte* Reduction::ReceivedFor(const Task& task, int64_t part) const {
  const partition::Replication& replication = options_.replication;
  return options_.received +
         (part % 2) * partition::ReductionBytes(
                          std::min(task.added.bytes(), replication.part_bytes), replication);
}

absl::Status Reduction::Scatter(const Task& task, int64_t part, Tickets& tickets) {
  tickets.clear();
  Transport& transport = *options_.replicas;
  const Message message = MessageOf(Message::Kind::kAddends, task, part);
  const auto shard = [&](size_t sum, size_t replica) {
    const Tensor whole = PartOfSum(task.added, sum, part, options_.replication.part_bytes);
    return ShardOf(whole, replica, options_.replication);
  };
  Tensor place = shard(0, own_);
  place.data = ReceivedFor(task, part);
  // Each replica meets the others in the order of their distance: pairs of one distance are
  // disjoint.
  for (size_t distance = 1; distance < replicas_; ++distance) {
    const size_t from = (own_ + distance) % replicas_;
    const size_t to = (own_ + replicas_ - distance) % replicas_;
    for (size_t sum = 0; place.bytes() > 0 && sum < places_[from].size(); ++sum) {
      ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostReceive(RankOf(from), message, place));
      place.data = static_cast<std::byte*>(place.data) + place.bytes();
    }
    for (size_t sum = 0; sum < places_[own_].size(); ++sum) {
      const Tensor theirs = shard(sum, to);
      if (theirs.bytes() == 0) break;
      ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostSend(RankOf(to), message, theirs));
    }
  }
  return absl::OkStatus();
}

absl::Status Reduction::AddUp(const Task& task, int64_t part) {
  const auto own = [&](size_t sum) {
    const Tensor whole = PartOfSum(task.added, sum, part, options_.replication.part_bytes);
    return ShardOf(whole, own_, options_.replication);
  };
  if (own(0).bytes() == 0) return absl::OkStatus();
  for (size_t sum = 0; sum < places_[own_].size(); ++sum) addends_[places_[own_][sum]] = own(sum);
  Tensor received = own(0);
  received.data = ReceivedFor(task, part);
  for (size_t distance = 1; distance < replicas_; ++distance) {
    for (const size_t place : places_[(own_ + distance) % replicas_]) {
      addends_[place] = received;
      received.data = static_cast<std::byte*>(received.data) + received.bytes();
    }
  }
  return options_.beside->ops().elementwise().SumTree(options_.beside->stream(), addends_, own(0));
}

absl::Status Reduction::Gather(const Tensor& part, const Message& message, Tickets& tickets) {
  Transport& transport = *options_.replicas;
  const Tensor own = ShardOf(part, own_, options_.replication);
  for (size_t distance = 1; distance < replicas_; ++distance) {
    const size_t from = (own_ + distance) % replicas_;
    const size_t to = (own_ + replicas_ - distance) % replicas_;
    const Tensor theirs = ShardOf(part, from, options_.replication);
    if (theirs.bytes() > 0) {
      ASSIGN_OR_RETURN(tickets.emplace_back(),
                       transport.PostReceive(RankOf(from), message, theirs));
    }
    if (own.bytes() == 0) continue;
    ASSIGN_OR_RETURN(tickets.emplace_back(), transport.PostSend(RankOf(to), message, own));
  }
  return absl::OkStatus();
}

void Reduction::SayFlushed() {
  flushed_.fetch_add(1, std::memory_order_release);
  base::WakeAll(flushed_);
}

absl::Status Reduction::WaitFor(Tickets& tickets) {
  for (const Transport::Ticket& ticket : tickets) {
    RETURN_IF_ERROR(options_.replicas->Wait(ticket, base::Deadline::After(options_.deadline)));
  }
  tickets.clear();
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
