#include "engine/launch/rendezvous.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/launch/places.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kGatherPrefix = "gather/";

std::string GatherKey(int64_t gather, int rank) {
  return absl::StrCat(kGatherPrefix, gather, "/", rank);
}

absl::Status CheckKey(const std::string& key) {
  if (key.empty() || key.size() > Rendezvous::kMaxKeyBytes || key == kFailedKey ||
      absl::StartsWith(key, kGatherPrefix)) {
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

}  // namespace

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
  return DoSet(key, value, deadline);
}

absl::StatusOr<std::string> Rendezvous::Get(const std::string& key, base::Deadline deadline) {
  RETURN_IF_ERROR(CheckKey(key));
  return DoGet(key, /*from=*/-1, deadline);
}

absl::StatusOr<std::vector<std::string>> Rendezvous::AllGather(const std::string& text,
                                                               base::Deadline deadline) {
  RETURN_IF_ERROR(CheckValue(text));
  absl::StatusOr<std::vector<std::string>> texts = GatherTexts(text, deadline);
  failed_ = failed_ || !texts.ok();
  return texts;
}

absl::StatusOr<std::vector<std::string>> Rendezvous::GatherTexts(const std::string& text,
                                                                 base::Deadline deadline) {
  const int64_t gather = gathers_++;
  RETURN_IF_ERROR(DoSet(GatherKey(gather, rank_), text, deadline));
  std::vector<std::string> texts;
  std::vector<int> missing;
  for (int rank = 0; rank < ranks_; ++rank) {
    // Once the deadline has passed, this only checks which others are missing.
    absl::StatusOr<std::string> theirs = DoGet(GatherKey(gather, rank), rank, deadline);
    if (absl::IsDeadlineExceeded(theirs.status())) {
      missing.push_back(rank);
      continue;
    }
    ASSIGN_OR_RETURN(texts.emplace_back(), std::move(theirs));
  }
  if (!missing.empty()) {
    return absl::DeadlineExceededError(absl::StrCat("rank", missing.size() == 1 ? " " : "s ",
                                                    absl::StrJoin(missing, ", "), " of ", ranks_,
                                                    " did not arrive in time"));
  }
  // A rank that gets here has read all of the previous gather.
  if (gather > 0) RETURN_IF_ERROR(DoRemove(GatherKey(gather - 1, rank_), deadline));
  return texts;
}

absl::Status Rendezvous::Barrier(base::Deadline deadline) {
  return AllGather("", deadline).status();
}

void Rendezvous::Fail(const absl::Status& why, base::Deadline deadline) {
  failed_ = true;
  DoSet(kFailedKey, FailureText(rank_, why), deadline).IgnoreError();
}

absl::Status Rendezvous::CheckOthers(base::Deadline deadline) {
  const absl::StatusOr<std::string> failed = DoLook(kFailedKey, deadline);
  if (absl::IsNotFound(failed.status())) return absl::OkStatus();
  failed_ = true;
  RETURN_IF_ERROR(failed.status());
  const bool is_own = absl::StartsWith(*failed, absl::StrCat(rank_, " "));
  return is_own ? absl::OkStatus() : FailureOf(*failed);
}

absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectRendezvous(const Launch& launch,
                                                              absl::Duration deadline) {
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
    rendezvous = ConnectTcp(launch, std::string(place), deadline);
  } else if (absl::ConsumePrefix(&place, "file:") && absl::StartsWith(place, "/")) {
    rendezvous = ConnectFolder(launch, std::string(place), deadline);
  }
  if (rendezvous.ok()) return rendezvous;
  return base::Annotate(rendezvous.status(),
                        absl::StrCat("rank ", launch.rank, ": rendezvous ", launch.rendezvous));
}

}  // namespace stagecoach::engine
