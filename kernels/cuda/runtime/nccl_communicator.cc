#include "kernels/cuda/runtime/nccl_communicator.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/system/run_with_timeout.h"
#include "kernels/cuda/runtime/backoff.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// The size of the messages that open connections.
constexpr int64_t kFirstBytes = 256;
// Returns a backoff for what NCCL does in the background, which takes some ten microseconds when it
// does not wait for other ranks.
Backoff PatienceWithNccl() {
  return {std::chrono::microseconds(200), std::chrono::milliseconds(1)};
}

absl::Status CheckOptions(const CommunicatorOptions& options) {
  const auto refuse = [](auto... words) {
    return absl::InvalidArgumentError(absl::StrCat("communicator: ", words...));
  };
  if (options.id.size() != NCCL_UNIQUE_ID_BYTES) {
    return refuse("an id has ", NCCL_UNIQUE_ID_BYTES, " bytes, this one ", options.id.size());
  }
  if (options.ranks < 1) return refuse(options.ranks, " ranks");
  if (options.rank < 0 || options.rank >= options.ranks) {
    return refuse("rank ", options.rank, " of ", options.ranks);
  }
  if (options.max_groups < 1) return refuse("max_groups is ", options.max_groups);
  const std::set<int> peers(options.peers.begin(), options.peers.end());
  if (peers.size() != options.peers.size()) return refuse("a peer is named twice");
  for (const int peer : peers) {
    if (peer < 0 || peer >= options.ranks || peer == options.rank) {
      return refuse("peer ", peer, " of rank ", options.rank, " of ", options.ranks);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string NcclVersionText() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return "";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::string> NewNcclId() {
  ncclUniqueId id = {};
  RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
  return std::string(id.internal, sizeof(id.internal));
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    CudaStream& stream, const CommunicatorOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                   NcclCommunicator::Create(stream, options));
  return communicator;
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    CudaStream& stream, const CommunicatorOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  const GpuScope scope(stream.gpu());
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(CudaEvent issued, CudaEvent::Create(stream.gpu(), CudaEvent::Timing::kOff));
  std::vector<CudaEvent> done;
  for (int i = 0; i < options.max_groups; ++i) {
    ASSIGN_OR_RETURN(CudaEvent event, CudaEvent::Create(stream.gpu(), CudaEvent::Timing::kOn));
    done.push_back(std::move(event));
  }
  const auto peers = static_cast<int64_t>(options.peers.size());
  ASSIGN_OR_RETURN(DeviceMemory scratch,
                   DeviceMemory::Allocate(stream.gpu(), (1 + peers) * kFirstBytes));
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(
      stream, options, std::move(issued), std::move(done), std::move(scratch)));
  RETURN_IF_ERROR(communicator->Connect(options));
  return communicator;
}

NcclCommunicator::NcclCommunicator(CudaStream& stream, const CommunicatorOptions& options,
                                   CudaEvent issued, std::vector<CudaEvent> done,
                                   DeviceMemory scratch)
    : stream_(stream),
      ranks_(options.ranks),
      rank_(options.rank),
      deadline_(options.deadline),
      poll_(options.poll),
      issued_(std::move(issued)),
      done_(std::move(done)),
      scratch_(std::move(scratch)) {}

absl::Status NcclCommunicator::Connect(const CommunicatorOptions& options) {
  ncclUniqueId id = {};
  std::memcpy(id.internal, options.id.data(), sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  RETURN_IF_ERROR(Checked(ncclCommInitRankConfig(&communicator_, ranks_, id, rank_, &config),
                          "ncclCommInitRankConfig"));
  const base::Deadline deadline = base::Deadline::After(deadline_);
  absl::Status status = Settle("ncclCommInitRankConfig", deadline);
  if (status.ok()) status = OpenConnections(options.peers, deadline);
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(Name(), ": not all ranks joined the group in time (", status.message(),
                   "): check that all were started with the same id and can reach each other "
                   "(NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)"));
}

// NCCL connects two ranks when they first exchange something, and its host waits for that.
absl::Status NcclCommunicator::OpenConnections(const std::vector<int>& peers,
                                               base::Deadline deadline) {
  if (peers.empty()) return absl::OkStatus();
  const auto count = static_cast<int64_t>(peers.size());
  const cudaStream_t communication = stream_.communication();
  absl::Status status = CudaStatus(cudaMemsetAsync(scratch_.data(), 0, kFirstBytes, communication),
                                   "cudaMemsetAsync");
  for (int64_t i = 0; status.ok() && i < count; ++i) {
    const int peer = peers[static_cast<size_t>(i)];
    status = Send(peer, scratch_.data(), kFirstBytes);
    if (status.ok()) status = Receive(peer, scratch_.data() + (1 + i) * kFirstBytes, kFirstBytes);
  }
  if (status.ok()) status = IssueGroup(deadline);
  if (status.ok()) status = issued_.Record(communication);
  for (const Backoff patience = PatienceWithNccl(); status.ok(); patience.Wait()) {
    const absl::StatusOr<bool> reached = issued_.Reached();
    status = reached.status();
    if (!status.ok() || *reached) break;
    status = poll_ ? poll_() : absl::OkStatus();
    if (status.ok()) status = Poll();
    if (status.ok() && deadline.Expired()) {
      status = absl::DeadlineExceededError("connections to peers are not open");
    }
  }
  if (!status.ok()) Abort();
  return status;
}

NcclCommunicator::~NcclCommunicator() {
  if (aborted_.load() || communicator_ == nullptr) return;
  const GpuScope scope(stream_.gpu());
  if (!SayGoodbye()) Abort();
}

bool NcclCommunicator::SayGoodbye() {
  if (broken_ || State() != ncclSuccess) return false;
  if (!Checked(ncclCommFinalize(communicator_), "ncclCommFinalize").ok()) return false;
  const base::Deadline deadline = base::Deadline::After(std::min(kLongestGoodbye, deadline_ / 2));
  if (!Settle("ncclCommFinalize", deadline).ok()) return false;
  End(ncclCommDestroy, "ncclCommDestroy", deadline.Remaining());
  return true;
}

void NcclCommunicator::End(ncclResult_t (*end)(ncclComm_t), const char* call,
                           absl::Duration limit) {
  const ncclComm_t communicator = std::exchange(communicator_, nullptr);
  const auto work = [end, communicator, gpu = stream_.gpu()] {
    const GpuScope scope(gpu);
    static_cast<void>(end(communicator));
  };
  // If it has not returned, that is reported when the process ends.
  static_cast<void>(base::RunWithTimeout(limit, absl::StrCat(call, " of ", Name()), work));
}

absl::Status NcclCommunicator::Send(int to, const void* data, int64_t bytes) {
  return Add({.peer = to, .to = nullptr, .from = data, .bytes = bytes});
}

absl::Status NcclCommunicator::Receive(int from, void* data, int64_t bytes) {
  return Add({.peer = from, .to = data, .from = nullptr, .bytes = bytes});
}

absl::Status NcclCommunicator::Add(Transfer transfer) {
  RETURN_IF_ERROR(CheckUsable());
  if (transfer.peer < 0 || transfer.peer >= ranks_ || transfer.peer == rank_) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(), ": there is no peer of rank ", transfer.peer));
  }
  // The transfer is kept until Launch, so that no error can leave NCCL's own group half collected.
  collected_.push_back(transfer);
  return absl::OkStatus();
}

absl::Status NcclCommunicator::Sum(float* data, int64_t elements) {
  RETURN_IF_ERROR(CheckUsable());
  collected_sums_.emplace_back(data, static_cast<size_t>(elements));
  return absl::OkStatus();
}

absl::StatusOr<Communicator::Group> NcclCommunicator::Launch() {
  RETURN_IF_ERROR(CheckUsable());
  if (launched_ == static_cast<int32_t>(done_.size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(), ": more than max_groups = ", launched_, " groups were launched since Restart"));
  }
  const cudaStream_t communication = stream_.communication();
  RETURN_IF_ERROR(issued_.Record(stream_.compute()));
  RETURN_IF_ERROR(issued_.ComeAfter(communication));
  RETURN_IF_ERROR(IssueGroup(base::Deadline::After(deadline_)));
  RETURN_IF_ERROR(done_[static_cast<size_t>(launched_)].Record(communication));
  return launched_++;
}

absl::Status NcclCommunicator::IssueGroup(base::Deadline deadline) {
  RETURN_IF_ERROR(Checked(ncclGroupStart(), "ncclGroupStart"));
  absl::Status issued = IssueTransfers();
  if (issued.ok()) issued = IssueSums();
  collected_.clear();
  collected_sums_.clear();
  // The group must be ended whatever happened in it.
  const absl::Status ended = Checked(ncclGroupEnd(), "ncclGroupEnd");
  RETURN_IF_ERROR(issued);
  RETURN_IF_ERROR(ended);
  // The next work of the stream must come after the group.
  return Settle("ncclGroupEnd", deadline);
}

absl::Status NcclCommunicator::IssueTransfers() {
  const cudaStream_t communication = stream_.communication();
  for (const auto& [peer, to, from, bytes] : collected_) {
    const auto count = static_cast<size_t>(bytes);
    const bool send = to == nullptr;
    const ncclResult_t result =
        send ? ncclSend(from, count, ncclUint8, peer, communicator_, communication)
             : ncclRecv(to, count, ncclUint8, peer, communicator_, communication);
    const absl::Status status = Checked(result, send ? "ncclSend" : "ncclRecv");
    if (status.ok()) continue;
    return base::Annotate(status, absl::StrCat(send ? "to" : "from", " rank ", peer));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::IssueSums() {
  for (const absl::Span<float> sum : collected_sums_) {
    RETURN_IF_ERROR(Checked(ncclAllReduce(sum.data(), sum.data(), sum.size(), ncclFloat32, ncclSum,
                                          communicator_, stream_.communication()),
                            "ncclAllReduce"));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunicator::ComeAfter(Group group) {
  RETURN_IF_ERROR(CheckUsable());
  if (group <= awaited_) return absl::OkStatus();
  RETURN_IF_ERROR(done_.at(static_cast<size_t>(group)).ComeAfter(stream_.compute()));
  awaited_ = group;
  return absl::OkStatus();
}

int32_t NcclCommunicator::groups_done() const {
  // Groups that were cut short also count as done; their events have been reached.
  while (!aborted_.load() && known_done_ < launched_) {
    const absl::StatusOr<bool> reached = done_[static_cast<size_t>(known_done_)].Reached();
    if (!reached.ok() || !*reached) break;
    ++known_done_;
  }
  return known_done_;
}

absl::StatusOr<std::chrono::steady_clock::time_point> NcclCommunicator::DoneAt(Group group) const {
  return stream_.clock().At(done_.at(static_cast<size_t>(group)));
}

void NcclCommunicator::Restart() {
  launched_ = 0;
  awaited_ = -1;
  known_done_ = 0;
}

absl::Status NcclCommunicator::Poll() {
  RETURN_IF_ERROR(CheckUsable());
  return Checked(State(), "ncclCommGetAsyncError");
}

void NcclCommunicator::Abort() {
  if (aborted_.load() || communicator_ == nullptr) return;
  {
    const GpuScope scope(stream_.gpu());
    groups_done();
  }
  aborted_.store(true);
  End(ncclCommAbort, "ncclCommAbort", kLongestAbort);
}

absl::Status NcclCommunicator::Settle(const char* call, base::Deadline deadline) {
  for (const Backoff patience = PatienceWithNccl();; patience.Wait()) {
    const ncclResult_t state = State();
    if (state != ncclInProgress) return Checked(state, call);
    const absl::Status polled = poll_ ? poll_() : absl::OkStatus();
    if (polled.ok() && !deadline.Expired()) continue;
    broken_ = true;
    RETURN_IF_ERROR(polled);
    return absl::DeadlineExceededError(absl::StrCat(Name(), ": ", call, " did not finish in time"));
  }
}

ncclResult_t NcclCommunicator::State() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  return asked == ncclSuccess ? state : asked;
}

absl::Status NcclCommunicator::Checked(ncclResult_t result, const char* call) {
  const absl::Status status = NcclStatus(result, call, communicator_);
  if (status.ok()) return status;
  broken_ = true;
  return base::Annotate(status, Name());
}

absl::Status NcclCommunicator::CheckUsable() const {
  if (!aborted_.load()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(Name(), ": the communicator was aborted"));
}

std::string NcclCommunicator::Name() const { return absl::StrCat("rank ", rank_, " of ", ranks_); }

}  // namespace stagecoach::kernels
