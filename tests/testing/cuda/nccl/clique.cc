#include "tests/testing/cuda/nccl/clique.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::testing::cuda {
namespace {

// The contents of an id: where the clique can be opened, and its own token. Bytes have any value,
// as in the real library's.
struct Place {
  int32_t process = 0, file = 0;
  std::array<uint64_t, 15> tokens{};
};
static_assert(sizeof(Place) == NCCL_UNIQUE_ID_BYTES);

// Processes read each other's atomics.
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

struct flock ByteOf(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::unique_ptr<Clique> Clique::Map(int file) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, /*offset=*/0);
  STAGECOACH_CHECK(memory != MAP_FAILED, "no memory for what ranks of NCCL share");
  // The memory starts as all zeros, for the first one to open it.
  return std::unique_ptr<Clique>(new Clique(file, static_cast<Shared*>(memory)));
}

std::unique_ptr<Clique> Clique::Make(ncclUniqueId* id) {
  const int file = memfd_create("nccl_stand_in", MFD_CLOEXEC);
  STAGECOACH_CHECK(file >= 0 && ftruncate(file, sizeof(Shared)) == 0,
                   "no memory for what ranks of NCCL share");
  std::unique_ptr<Clique> clique = Map(file);
  std::random_device random;
  Place place = {.process = getpid(), .file = file};
  for (uint64_t& token : place.tokens) token = uint64_t{random()} << 32 | random();
  clique->shared_->token = place.tokens[0];
  std::memcpy(id->internal, &place, sizeof(place));
  return clique;
}

std::unique_ptr<Clique> Clique::Open(const ncclUniqueId& id) {
  Place place;
  std::memcpy(&place, id.internal, sizeof(place));
  const std::string path = absl::StrCat("/proc/", place.process, "/fd/", place.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return nullptr;
  // The number may belong to another file by now.
  struct stat status = {};
  if (fstat(file, &status) != 0 || status.st_size != sizeof(Shared)) {
    close(file);
    return nullptr;
  }
  std::unique_ptr<Clique> clique = Map(file);
  if (clique->shared_->token != place.tokens[0]) return nullptr;
  return clique;
}

Clique::~Clique() {
  if (rank_ >= 0) Leave();
  munmap(shared_, sizeof(Shared));
  close(file_);
}

bool Clique::Join(int rank, int ranks, int gpu) {
  STAGECOACH_CHECK(ranks <= kMaxRanks, "too many ranks for the stand-in of NCCL");
  int counted = 0;
  if (!shared_->ranks.compare_exchange_strong(counted, ranks) && counted != ranks) return false;
  Member& member = shared_->members[static_cast<size_t>(rank)];
  State absent = State::kAbsent;
  if (!member.state.compare_exchange_strong(absent, State::kComing)) return false;
  STAGECOACH_CHECK(Lock(rank), "a rank of NCCL cannot show that it is alive");
  rank_ = rank;
  member.process = getpid();
  member.gpu = gpu;
  member.state = State::kHere;
  ++shared_->joined;
  return true;
}

void Clique::Leave() { shared_->members[static_cast<size_t>(rank_)].state = State::kLeft; }

bool Clique::complete() const { return shared_->joined == shared_->ranks && shared_->ranks > 0; }

bool Clique::deserted() const {
  for (const Member& member : shared_->members) {
    const State state = member.state;
    if (state == State::kComing || state == State::kHere) return false;
  }
  return shared_->joined > 0;
}

bool Clique::SharesGpu() const {
  std::set<std::pair<pid_t, int>> gpus;
  for (int rank = 0; rank < shared_->ranks; ++rank) {
    const Member& member = shared_->members[static_cast<size_t>(rank)];
    gpus.emplace(member.process, member.gpu);
  }
  return static_cast<int>(gpus.size()) < shared_->ranks;
}

bool Clique::HasLostRank() const {
  for (int rank = 0; rank < shared_->ranks; ++rank) {
    if (rank != rank_ && HasEnded(rank)) return true;
  }
  return false;
}

bool Clique::IsLast() const {
  for (int rank = 0; rank < shared_->ranks; ++rank) {
    const bool here = shared_->members[static_cast<size_t>(rank)].state == State::kHere;
    if (rank != rank_ && here && !HasEnded(rank)) return false;
  }
  return true;
}

Clique::Path& Clique::path(int from, int to) const {
  return shared_->paths[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

// The locks belong to the open file, not to the process, which would lose them when any rank in it
// leaves.
bool Clique::Lock(int rank) const {
  struct flock lock = ByteOf(rank);
  return fcntl(file_, F_OFD_SETLK, &lock) == 0;
}

// A rank of this process lives as long as the caller. Others may leave after they were seen.
bool Clique::HasEnded(int rank) const {
  const Member& member = shared_->members[static_cast<size_t>(rank)];
  return member.state == State::kHere && member.process != getpid() && !IsLocked(rank) &&
         member.state == State::kHere;
}

bool Clique::IsLocked(int rank) const {
  struct flock lock = ByteOf(rank);
  STAGECOACH_CHECK(fcntl(file_, F_OFD_GETLK, &lock) == 0, "locks cannot be looked at");
  return lock.l_type != F_UNLCK;
}

}  // namespace stagecoach::testing::cuda
