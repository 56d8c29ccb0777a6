#include "engine/comm/rendezvous.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/comm/places.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kGatherPrefix = "gather/";
constexpr char kAlivePrefix[] = "alive/";
constexpr char kPacePrefix[] = "pace/";
constexpr char kOtherRankUrl[] = "stagecoach/other-rank";

constexpr absl::Duration kShortestLookInterval = absl::Milliseconds(200);
constexpr absl::Duration kLookIntervalOfARank = absl::Milliseconds(1);
// The time that the store has to answer while an expired deadline is investigated.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);

std::string GatherKey(int64_t gather, int rank) {
  return absl::StrCat(kGatherPrefix, gather, "/", rank);
}

absl::Status CheckKey(const std::string& key) {
  if (key.empty() || key.size() > Rendezvous::kMaxKeyBytes || key == kFailedKey ||
      absl::StartsWith(key, kGatherPrefix) || absl::StartsWith(key, kAlivePrefix) ||
      absl::StartsWith(key, kPacePrefix)) {
    return absl::InvalidArgumentError(absl::StrCat("not a key of a rendezvous: \"", key, "\""));
  }
  return absl::OkStatus();
}

absl::Status CheckValue(const std::string& value) {
  if (value.size() > Rendezvous::kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a value of ", value.size(),
                                                   " bytes is above the limit of a rendezvous, ",
                                                   Rendezvous::kMaxValueBytes));
  }
  return absl::OkStatus();
}

// If the rendezvous itself is in order, its errors have their cause on other ranks.
absl::Status MarkIfElsewhere(absl::Status status) {
  const bool is_elsewhere =
      absl::IsAborted(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  return is_elsewhere ? OfAnotherRank(std::move(status)) : status;
}

template <typename T>
absl::StatusOr<T> MarkIfElsewhere(absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return MarkIfElsewhere(std::move(result).status());
}

}  // namespace

bool IsOfAnotherRank(const absl::Status& status) {
  return status.GetPayload(kOtherRankUrl).has_value();
}

absl::Status OfAnotherRank(absl::Status status) {
  status.SetPayload(kOtherRankUrl, absl::Cord());
  return status;
}

std::string FailureText(int rank, const absl::Status& why) {
  return absl::StrCat(rank, " ", why.message()).substr(0, Rendezvous::kMaxValueBytes);
}

absl::Status FailureOf(const std::string& text) {
  const size_t space = text.find(' ');
  if (space == std::string::npos) return absl::AbortedError("a rank has failed");
  return absl::AbortedError(
      absl::StrCat("rank ", text.substr(0, space), " has failed: ", text.substr(space + 1)));
}

absl::Status Rendezvous::Set(const std::string& key, const std::string& value,
                             base::Deadline deadline) {
  RETURN_IF_ERROR(CheckKey(key));
  RETURN_IF_ERROR(CheckValue(value));
  return MarkIfElsewhere(DoSet(key, value, deadline));
}

absl::StatusOr<std::string> Rendezvous::Get(const std::string& key, base::Deadline deadline) {
  RETURN_IF_ERROR(CheckKey(key));
  return MarkIfElsewhere(DoGet(key, /*from=*/-1, deadline));
}

absl::StatusOr<std::vector<std::string>> Rendezvous::AllGather(const std::string& text,
                                                               base::Deadline deadline) {
  return Gather(text, deadline, /*late=*/nullptr);
}

absl::StatusOr<std::vector<std::string>> Rendezvous::Gather(const std::string& text,
                                                            base::Deadline deadline,
                                                            LateNotice* late) {
  RETURN_IF_ERROR(CheckValue(text));
  absl::StatusOr<std::vector<std::string>> texts = GatherTexts(text, deadline, late);
  failed_ = failed_ || !texts.ok();
  if (absl::IsDeadlineExceeded(texts.status())) {
    Fail(texts.status(), base::Deadline::After(kAnswerTime));
  }
  return MarkIfElsewhere(std::move(texts));
}

absl::StatusOr<std::vector<std::string>> Rendezvous::GatherTexts(const std::string& text,
                                                                 base::Deadline deadline,
                                                                 LateNotice* late) {
  const int64_t gather = gathers_++;
  RETURN_IF_ERROR(DoSet(GatherKey(gather, rank_), text, deadline));
  std::vector<std::string> texts;
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    // Once the deadline has passed, this only checks which others are missing.
    absl::StatusOr<std::string> theirs = Await(gather, rank, deadline, late);
    if (absl::IsDeadlineExceeded(theirs.status())) {
      missing.push_back(rank);
      continue;
    }
    ASSIGN_OR_RETURN(texts.emplace_back(), std::move(theirs));
  }
  if (!missing.empty()) return ExplainMissing(std::move(missing));
  // A rank that gets here has read all of the previous gather.
  if (gather > 0) RETURN_IF_ERROR(DoRemove(GatherKey(gather - 1, rank_), deadline));
  return texts;
}

absl::StatusOr<std::string> Rendezvous::Await(int64_t gather, int from, base::Deadline deadline,
                                              LateNotice* late) {
  while (true) {
    const bool is_last = deadline.Remaining() <= look_interval();
    absl::StatusOr<std::string> value = DoGet(
        GatherKey(gather, from), from, is_last ? deadline : base::Deadline::After(look_interval()));
    if (is_last || !absl::IsDeadlineExceeded(value.status())) return value;
    RETURN_IF_ERROR(Heartbeat("a wait for the others", deadline));
    if (late == nullptr || !late->IsDue()) continue;
    ASSIGN_OR_RETURN(const std::vector<int> missing, MissingFrom(gather, from, deadline));
    if (!missing.empty()) late->Give(missing);
  }
}

absl::StatusOr<std::vector<int>> Rendezvous::MissingFrom(int64_t gather, int first,
                                                         base::Deadline deadline) {
  std::vector<int> missing;
  for (int rank = first; rank < ranks_; ++rank) {
    const absl::Status status = DoLook(GatherKey(gather, rank), deadline).status();
    if (absl::IsNotFound(status)) {
      missing.push_back(rank);
    } else {
      RETURN_IF_ERROR(status);
    }
  }
  return missing;
}

absl::Status Rendezvous::ExplainMissing(std::vector<int> missing) {
  ASSIGN_OR_RETURN(const std::vector<Silent> silent, FindUnresponsive());
  std::vector<int> silent_missing;
  std::string seen;
  for (const Silent& other : silent) {
    if (!absl::c_linear_search(missing, other.rank)) continue;
    silent_missing.push_back(other.rank);
    if (!other.last_seen.empty()) {
      absl::StrAppend(&seen, "; rank ", other.rank, " was last seen in ", other.last_seen);
    }
  }
  // Ranks that are alive are late because of the silent ones, as this one is.
  if (!silent_missing.empty()) missing = std::move(silent_missing);
  return absl::DeadlineExceededError(absl::StrCat("rank", missing.size() == 1 ? " " : "s ",
                                                  absl::StrJoin(missing, ", "), " of ", ranks_,
                                                  " did not arrive in time", seen));
}

absl::Status Rendezvous::Barrier(base::Deadline deadline, LateNotice* late) {
  return Gather("", deadline, late).status();
}

void Rendezvous::Fail(const absl::Status& why, base::Deadline deadline) {
  failed_ = true;
  DoSet(kFailedKey, FailureText(rank_, why), deadline).IgnoreError();
}

absl::Status Rendezvous::CheckOthers(base::Deadline deadline) {
  const absl::StatusOr<std::string> failed = DoLook(kFailedKey, deadline);
  if (absl::IsNotFound(failed.status())) return absl::OkStatus();
  failed_ = true;
  RETURN_IF_ERROR(MarkIfElsewhere(failed.status()));
  const bool is_own = absl::StartsWith(*failed, absl::StrCat(rank_, " "));
  return is_own ? absl::OkStatus() : OfAnotherRank(FailureOf(*failed));
}

absl::Duration Rendezvous::look_interval() const {
  return std::max(kShortestLookInterval, ranks_ * kLookIntervalOfARank);
}

absl::Status Rendezvous::Heartbeat(const std::string& doing, base::Deadline deadline) {
  doing_ = doing;
  return DoReplace(absl::StrCat(kAlivePrefix, rank_), absl::StrCat(++signs_, " ", doing), deadline);
}

absl::Status Rendezvous::ShowPace(const std::string& step_time, base::Deadline deadline) {
  return DoReplace(absl::StrCat(kPacePrefix, rank_), step_time, deadline);
}

absl::StatusOr<std::vector<std::string>> Rendezvous::ReadStepTimes(base::Deadline deadline) {
  return DoLookAtAll(kPacePrefix, deadline);
}

absl::StatusOr<std::vector<Rendezvous::Silent>> Rendezvous::FindUnresponsive() {
  const auto answer = [] { return base::Deadline::After(kAnswerTime); };
  const base::Deadline end = base::Deadline::After(silence_interval());
  ASSIGN_OR_RETURN(const std::vector<std::string> before, DoLookAtAll(kAlivePrefix, answer()));
  while (!end.Expired()) {
    RETURN_IF_ERROR(Heartbeat(doing_, answer()));
    const absl::Duration pause = std::min(look_interval() / 2, end.Remaining());
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(pause));
    RETURN_IF_ERROR(CheckOthers(answer()));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> after, DoLookAtAll(kAlivePrefix, answer()));
  std::vector<Silent> silent;
  for (int rank = 0; rank < ranks_; ++rank) {
    const std::string& sign = after[static_cast<size_t>(rank)];
    if (rank == rank_ || sign != before[static_cast<size_t>(rank)]) continue;
    const size_t space = sign.find(' ');
    silent.push_back({rank, space == std::string::npos ? "" : sign.substr(space + 1)});
  }
  return silent;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectRendezvous(const Launch& launch,
                                                              absl::Duration deadline,
                                                              LateNotice* late) {
  STAGECOACH_CHECK(launch.rank >= 0 && launch.rank < launch.ranks,
                   absl::StrCat("rank ", launch.rank, " of ", launch.ranks));
  if (launch.rendezvous.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", launch.ranks, " ranks started by ", launch.launcher,
        " have no place to find each other; set STAGECOACH_RENDEZVOUS=tcp://HOST:PORT for all, "
        "with rank 0's host and a free port of it"));
  }
  absl::string_view place = launch.rendezvous;
  absl::StatusOr<std::unique_ptr<Rendezvous>> rendezvous =
      absl::InvalidArgumentError("must be tcp://HOST:PORT or file:/FOLDER");
  if (absl::ConsumePrefix(&place, "tcp://")) {
    rendezvous = ConnectTcp(launch, std::string(place), deadline, late);
  } else if (absl::ConsumePrefix(&place, "file:") && absl::StartsWith(place, "/")) {
    rendezvous = ConnectFolder(launch, std::string(place), deadline);
  }
  if (rendezvous.ok()) return rendezvous;
  return base::Annotate(rendezvous.status(),
                        absl::StrCat("rank ", launch.rank, ": rendezvous ", launch.rendezvous));
}

}  // namespace stagecoach::engine
