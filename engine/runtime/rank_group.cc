#include "engine/runtime/rank_group.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/comm/gloo.h"

namespace stagecoach::engine {
namespace {

// Durations and intervals at which a process that misses another looks for the reason.
constexpr absl::Duration kLeastPatience = absl::Seconds(1);
constexpr absl::Duration kLeastPaceInterval = absl::Seconds(1);
constexpr absl::Duration kPatiencePause = absl::Milliseconds(20);

}  // namespace

RankGroup::~RankGroup() { Disconnect(); }

void RankGroup::Disconnect() {
  is_connected_ = false;
  activity_ = nullptr;
  // A group that has failed does not wait for ranks that may be gone.
  if (const absl::Status failed = status(); !failed.ok()) abort_->Raise(failed);
  // Transports use one another's devices, and jobs use the transports.
  for (const int index : local_devices_) {
    if (beside(index) != nullptr) beside(index)->stream().Run([] {});
    device(index).stream().Run([] {});
  }
  // All run concurrently: ranks of a communicator may wait for each other to say goodbye.
  static_cast<void>(ForEachLocalDevice([this](int index) {
    Member& member = members_[Index(index)];
    member.transport.reset();
    member.parts.reset();
    if (member.beside != nullptr) {
      member.beside->stream().Run([&member] { member.replicas.reset(); });
    }
    return absl::OkStatus();
  }));
}

absl::StatusOr<std::vector<std::string>> RankGroup::Gather(const absl::StatusOr<std::string>& own) {
  if (options_.rendezvous == nullptr) {
    RETURN_IF_ERROR(own.status());
    return std::vector<std::string>{*own};
  }
  RETURN_IF_ERROR(status());
  if (!own.ok()) return Fail(own.status());
  base::MutexLock lock(rendezvous_mutex_);
  absl::StatusOr<std::vector<std::string>> all = options_.rendezvous->AllGather(*own, Deadline());
  if (!all.ok()) return NoteFirst(all.status());
  return all;
}

absl::Status RankGroup::Agree(const absl::Status& own) {
  if (!own.ok()) return Gather(own).status();
  return Gather("").status();
}

absl::Status RankGroup::ForEachLocalDevice(absl::FunctionRef<absl::Status(int)> function) {
  for (const int index : local_devices_) {
    Job& job = *members_[Index(index)].job;
    job.function = &function;
    job.device = index;
    kernels::Stream& stream = device(index).stream();
    // The queue is empty between calls, so there is room.
    STAGECOACH_CHECK_OK(stream.Submit(job));
    STAGECOACH_CHECK_OK(stream.Record(job.done));
  }
  absl::Status first;
  for (const int index : local_devices_) {
    Job& job = *members_[Index(index)].job;
    Await(job);
    first.Update(job.status);
  }
  return first;
}

void RankGroup::Await(Job& job) {
  // Ranks wait for each other with deadlines, so each ends by itself.
  Rendezvous* const rendezvous = options_.rendezvous;
  while (true) {
    const absl::Status status =
        job.done.Wait(rendezvous == nullptr ? base::Deadline::Never()
                                            : base::Deadline::After(rendezvous->look_interval()));
    if (status.ok()) return;
    LookAtOthers();
  }
}

absl::Status RankGroup::WaitUntil(absl::FunctionRef<bool(base::Deadline until)> is_done) {
  const Rendezvous* const rendezvous = options_.rendezvous;
  while (!is_done(rendezvous == nullptr ? base::Deadline::Never()
                                        : base::Deadline::After(rendezvous->look_interval()))) {
    LookAtOthers();
    RETURN_IF_ERROR(status());
  }
  return absl::OkStatus();
}

void RankGroup::LookAtOthers() {
  if (!status().ok()) return;
  absl::Status failure;
  {
    base::MutexLock lock(rendezvous_mutex_);
    failure = options_.rendezvous->CheckOthers(Deadline());
    failure.Update(Heartbeat());
  }
  if (!failure.ok()) AbortAll(NoteFirst(failure));
}

absl::Status RankGroup::Heartbeat() {
  const std::string doing = activity_ ? activity_() : "the start or the end of the run";
  return options_.rendezvous->Heartbeat(doing, Deadline());
}

absl::Duration RankGroup::pace_interval() const {
  return std::max(kLeastPaceInterval, options_.rendezvous->look_interval());
}

std::vector<std::string> RankGroup::ShowPace(const std::string& step_time) {
  base::MutexLock lock(rendezvous_mutex_);
  Rendezvous& rendezvous = *options_.rendezvous;
  if (!rendezvous.ShowPace(step_time, Deadline()).ok() || rendezvous.rank() != 0) return {};
  absl::StatusOr<std::vector<std::string>> step_times = rendezvous.ReadStepTimes(Deadline());
  return step_times.ok() ? *std::move(step_times) : std::vector<std::string>();
}

absl::Status RankGroup::DescribeBy(std::function<std::string()> activity) {
  activity_ = std::move(activity);
  if (options_.rendezvous == nullptr) return absl::OkStatus();
  base::MutexLock lock(rendezvous_mutex_);
  return Heartbeat();
}

void RankGroup::AbortAll(const absl::Status& reason) {
  abort_->Raise(reason);
  if (!is_connected_) {
    for (const std::shared_ptr<GlooMesh>& mesh : meshes_) mesh->Abort();
    return;
  }
  for (const int index : local_devices_) {
    const Member& member = members_[Index(index)];
    if (member.transport != nullptr) member.transport->Abort(reason);
    if (member.parts != nullptr) member.parts->Abort(reason);
    if (member.replicas != nullptr) member.replicas->Abort(reason);
  }
}

absl::Status RankGroup::Fail(const absl::Status& own) {
  // A failure here that another one caused is not reported again.
  if (options_.rendezvous == nullptr || !status().ok()) return NoteFirst(own);
  absl::Status before;
  absl::Status cause = own;
  {
    base::MutexLock lock(rendezvous_mutex_);
    const base::Deadline deadline = Deadline();
    before = FailureElsewhere(own);
    if (before.ok() && absl::IsDeadlineExceeded(own)) {
      const absl::StatusOr<std::vector<Rendezvous::Silent>> silent =
          options_.rendezvous->FindUnresponsive();
      before = silent.status();
      if (silent.ok()) cause = CauseOf(own, *silent);
    }
    if (before.ok()) {
      options_.rendezvous->Fail(cause, deadline);
      before = options_.rendezvous->CheckOthers(deadline);
    }
  }
  if (before.ok()) return NoteFirst(cause);
  return NoteFirst(OfAnotherRank(
      absl::Status(before.code(), absl::StrCat(before.message(), "; here: ", own.message()))));
}

// A closed connection tells that another process is gone, as does NCCL's Aborted, but not why: that
// process may be about to report it.
absl::Status RankGroup::FailureElsewhere(const absl::Status& own) {
  if (!absl::IsUnavailable(own) && !absl::IsAborted(own)) return absl::OkStatus();
  const base::Deadline patience =
      base::Deadline::After(kLeastPatience + options_.rendezvous->silence_interval());
  absl::Status failure;
  while (failure.ok() && !patience.Expired()) {
    failure = options_.rendezvous->CheckOthers(Deadline());
    failure.Update(Heartbeat());
    if (failure.ok()) std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPatiencePause));
  }
  return failure;
}

absl::Status RankGroup::CauseOf(const absl::Status& own,
                                const std::vector<Rendezvous::Silent>& silent) const {
  if (silent.empty()) return own;
  constexpr size_t kMostNamed = 4;
  std::vector<std::string> names, seen;
  for (const Rendezvous::Silent& other : silent) {
    names.push_back(names_[Index(other.rank)]);
    if (!other.last_seen.empty()) {
      seen.push_back(absl::StrCat("; rank ", other.rank, " was last seen in ", other.last_seen));
    }
    if (names.size() == kMostNamed) break;
  }
  if (silent.size() > names.size()) {
    names.push_back(absl::StrCat(silent.size() - names.size(), " more"));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      absl::StrJoin(names, ", "), " timed out: ", own.message(), absl::StrJoin(seen, "")));
}

absl::Status RankGroup::NoteFirst(const absl::Status& error) {
  base::MutexLock lock(mutex_);
  first_error_.Update(error);
  return first_error_;
}

absl::Status RankGroup::RunCollective(absl::FunctionRef<absl::Status(int)> function) {
  RETURN_IF_ERROR(status());
  const absl::Status any = ForEachLocalDevice([&](int index) {
    absl::Status status = function(index);
    if (!status.ok()) {
      // Reports before the abort: the others are to hear the reason first, and then that NCCL has
      // failed.
      status = Fail(status);
      transport(index).Abort(status);
      if (parts(index) != nullptr) parts(index)->Abort(status);
      if (replicas(index) != nullptr) replicas(index)->Abort(status);
      EndTransfers(index);
    }
    return status;
  });
  return any.ok() ? any : status();
}

void RankGroup::EndTransfers(int index) {
  static_cast<void>(transport(index).Poll());
  if (parts(index) != nullptr) static_cast<void>(parts(index)->Poll());
  if (replicas(index) == nullptr) return;
  beside(index)->stream().Run([this, index] { static_cast<void>(replicas(index)->Poll()); });
}

absl::Status RankGroup::status() {
  base::MutexLock lock(mutex_);
  return first_error_;
}

}  // namespace stagecoach::engine
