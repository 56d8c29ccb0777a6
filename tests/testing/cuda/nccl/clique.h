#ifndef STAGECOACH_TESTS_TESTING_CUDA_NCCL_CLIQUE_H_
#define STAGECOACH_TESTS_TESTING_CUDA_NCCL_CLIQUE_H_

#include <nccl.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace stagecoach::testing::cuda {

// The state that the ranks of one ncclUniqueId share, in whichever processes of this machine they
// are. It is unnamed memory, which others open through the process that made the id, as long as
// that process keeps it; so nothing is left behind, however processes end.
//
// Thread-safe, except for the ends of paths: each belongs to one rank.
class Clique {
 public:
  static constexpr int kMaxRanks = 16;
  static constexpr size_t kChunkBytes = size_t{1} << 16;

  // The data of a rank about its end of a path.
  struct End {
    std::atomic<bool> asked{false};    // true once a group that uses it has been posted
    std::atomic<int64_t> transfer{0};  // the current one, from 1, which the next two describe
    int64_t bytes = 0;
    int64_t type = 0;
    // The position of the transfer among those of its group on its path, from 1, and how many this
    // rank sends to the other in the group, and receives.
    int64_t pass = 0, forth = 0, back = 0;
  };
  // The path from one rank to another. Once both are at the same transfer, its bytes pass through
  // `chunk`; the sender counts how often it was filled and the receiver how often it was emptied.
  struct Path {
    End send, receive;
    std::atomic<int64_t> filled{0}, emptied{0};
    std::array<std::byte, kChunkBytes> chunk;
  };

  // Makes a clique, which can be opened by its id until the result is destroyed.
  static std::unique_ptr<Clique> Make(ncclUniqueId* id);
  // Returns null if no clique of this id exists.
  static std::unique_ptr<Clique> Open(const ncclUniqueId& id);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  // Joins as `rank` of `ranks`, with a GPU of this process; false if it has joined before, or if
  // others have another number of ranks. Must be called once.
  bool Join(int rank, int ranks, int gpu);
  // Takes no further part, which does not count as a death.
  void Leave();

  bool complete() const;  // all ranks have joined
  bool deserted() const;  // some have joined, and none is left
  // Returns whether two ranks have the same GPU of one process. Pre-condition: it is complete.
  bool SharesGpu() const;
  // Returns whether the process of a rank has ended that had joined and not left.
  bool HasLostRank() const;
  // Returns whether this rank is the last: the others have left, have ended or have not joined.
  bool IsLast() const;

  Path& path(int from, int to) const;

 private:
  enum class State : int { kAbsent, kComing, kHere, kLeft };
  struct Member {
    std::atomic<State> state{State::kAbsent};
    pid_t process = 0;
    int gpu = 0;
  };
  struct Shared {
    uint64_t token = 0;  // of the id
    std::atomic<int> ranks{0}, joined{0};
    std::array<Member, kMaxRanks> members;
    std::array<std::array<Path, kMaxRanks>, kMaxRanks> paths;
  };

  Clique(int file, Shared* shared) : file_(file), shared_(shared) {}
  static std::unique_ptr<Clique> Map(int file);
  // Each present rank has a lock on the byte of its number, which ends with its process.
  bool Lock(int rank) const;
  bool IsLocked(int rank) const;
  bool HasEnded(int rank) const;

  const int file_;
  Shared* const shared_;
  int rank_ = -1;  // once it has joined
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_CLIQUE_H_
