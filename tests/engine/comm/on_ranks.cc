#include "tests/engine/comm/on_ranks.h"

#include <unistd.h>

#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/comm/launch.h"
#include "gtest/gtest.h"

namespace stagecoach::engine {
namespace {

// The deadline is long enough for many threads on a busy machine under a sanitizer.
constexpr absl::Duration kDeadline = absl::Minutes(5);

}  // namespace

std::vector<absl::Status> OnRanks(int ranks, absl::FunctionRef<absl::Status(Rendezvous&)> work) {
  static int runs = 0;
  const Launch launch{.ranks = ranks,
                      .id = absl::StrCat(getpid(), "-", runs++),
                      .rendezvous = absl::StrCat("file:", ::testing::TempDir())};
  std::vector<absl::Status> statuses(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Launch own = launch;
      own.rank = own.local_rank = rank;
      statuses[static_cast<size_t>(rank)] = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(const std::unique_ptr<Rendezvous> rendezvous,
                         ConnectRendezvous(own, kDeadline));
        // All must be there before one may fail and leave.
        RETURN_IF_ERROR(rendezvous->Barrier(base::Deadline::After(kDeadline)));
        return work(*rendezvous);
      }();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace stagecoach::engine
