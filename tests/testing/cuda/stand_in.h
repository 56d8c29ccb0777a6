#ifndef STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_
#define STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

// CPU stand-ins for the calls of the CUDA runtime, its driver, cuBLASLt, cuDNN and NCCL that the
// CUDA backend makes, linked in place of those libraries (libstagecoach_cuda_stand_in.so), so that
// the backend that ships runs where there is no GPU.
//
// Nothing runs by itself: streams are queues, and whichever thread makes a call of a library
// performs a random number of the operations that are ready, in an order that is random but for
// what streams and events say. Device memory can be touched only by operations: host code that does
// so dies of SIGSEGV (where no other thread is performing operations at that moment). It is
// poisoned when it is allocated, and has red zones, which are checked when it is freed.
//
// What CUDA does not refuse but the backend must not do is refused, with a line on stderr: work in
// the null stream, copies from or to host memory that is not pinned, copies that leave an
// allocation. Kernels run in the manner of emulator.h. A capture also takes in streams that come to
// wait for its events, as branches of the graph: the stream in which it began must wait for the end
// of each.
//
// Processes have GPUs of their own, whose numbers say nothing to other processes. Ranks of NCCL can
// be in several (nccl_clique.h).
namespace stagecoach::testing::cuda {

// The order in which the threads of a block run between two barriers.
enum class ThreadOrder : uint8_t { kAscending, kDescending, kRandom };

struct StandInOptions {
  int gpus = 4;
  int64_t memory_bytes = int64_t{256} << 20;  // of each
  int64_t context_bytes = 0;                  // of these, that the driver keeps to itself
  int shared_bytes = 227 << 10;               // the most that a block may have
  uint64_t seed = 1;
  ThreadOrder thread_order = ThreadOrder::kRandom;
  // Chance that a call leaves a ready operation for later; below 1.
  double delay = 0.5;
  bool driver = true;              // false: as where no driver is installed
  int64_t failing_operation = -1;  // FailOperation
  int64_t cudnn_version = 91900;
  int nccl_channels = 1;  // a power of two
  // Aborts where the groups of two ranks differ in what the two exchange, which NCCL leaves
  // undefined. False: transfers then wait as its batches make them wait.
  bool nccl_groups_match = true;
  bool graphs = true;                      // false: as where nothing can be captured
  bool memory_operations = true;           // false: the driver has no cuStreamWriteValue32
  cudaError_t launch_error = cudaSuccess;  // of every kernel's launch
  bool kernels_run = true;                 // false: kernels are launched, and do nothing
  // ncclCommAbort and ncclCommDestroy wait until all other ranks have come to theirs, or their
  // processes have ended: in NCCL, threads that serve other ranks of a host do.
  bool nccl_end_waits = false;
  // The process stops itself (SIGSTOP) at its first call of this name; "": at none.
  std::string stop_at;
};

// How many operations a stream's queue in the driver holds; a graph counts as one. A call that
// finds it full returns when there is room, as CUDA's do.
inline constexpr int kQueueCapacity = 1024;

// False in test programs that run on GPUs (tests/kernels/cuda/hardware.cc): there the machine is
// what it is, and nothing fails on purpose.
bool IsSimulated();

// Starts anew. Everything made before must have been given back. Without a call, the options are
// the defaults, or what $STAGECOACH_CUDA_STAND_IN says:
// "gpus=2,memory=64MB,seed=7,order=descending,delay=0,driver=0,fail=120,fail_operation=50,
// nccl_end_waits=1,stop_at=ncclCommAbort,launch_error=209".
void Reset(const StandInOptions& options);

// Calls made since Reset, of all libraries (those that give things back and ask for errors are not
// counted, and never fail).
int64_t calls();
// The same by their names.
std::map<std::string, int64_t> CallsByName();
// What $CUDA_DEVICE_MAX_CONNECTIONS was at the first call since Reset, which is when the driver
// reads it; "" if it was not set.
std::string MaxConnections();
// Call number `call` (1: the next one) fails as that library fails, with an error of its own kind;
// 0: none does.
void FailCall(int64_t call);
// The name of the call that failed on purpose; "" if none has yet.
std::string failed_call();
// The operation after the next `operations` fails on the device: the error shows at later calls, as
// CUDA's asynchronous errors do. -1: none does.
void FailOperation(int64_t operations);

// The most operations that a stream has had to do at once since this was last asked (those of a
// graph are counted one by one).
size_t TakeMostPending();

// What exists now. A clean end has 0 in all.
struct Live {
  int64_t allocations = 0, host_allocations = 0, streams = 0, events = 0, graphs = 0;
  int64_t blas_objects = 0, cudnn_objects = 0, communicators = 0;
  int64_t total() const {
    return allocations + host_allocations + streams + events + graphs + blas_objects +
           cudnn_objects + communicators;
  }
};
Live live();

// The NCCL communicators that are of rank `rank` now fail after `groups` more of their groups have
// been launched, as when another rank has died: ncclCommGetAsyncError gives ncclRemoteError, and
// groups that are not done never are, until the communicator is aborted.
void FailCommunicator(int rank, int64_t groups = 0);

// ---- For the stand-ins of other libraries.

// Counts a call. True if it is the one that is to fail.
bool MustFail(const char* call);
// Stops the process here if the options say so. For calls that are not counted.
void StopIfAsked(const char* call);

// The calling thread's current GPU, the GPU of a stream, and that of the live allocation which all
// of `bytes` bytes from `address` lie in; -1: there is no such stream or allocation, or no driver.
int CurrentGpu();
int GpuOfStream(cudaStream_t stream);
int GpuOfMemory(const void* address, int64_t bytes);

// Work in a stream's order. Performed, once `ready` (if it is given) says so, by some thread in a
// call of a library. `ready` is asked, any number of times, while the operation is the first of its
// stream. Both run one at a time in the whole process, may touch device memory, and must not make
// calls of the libraries nor of this header. While the stream is being captured the operation
// becomes part of the graph instead (then `ready` must not be given, and `run` is copied). After a
// failure of its GPU an operation is dropped.
struct Operation {
  const char* name = "";
  std::function<bool()> ready;
  std::function<void()> run;
  int64_t extra_ns = 0;  // of the GPU's clock, that pass besides
};
cudaError_t Enqueue(cudaStream_t stream, Operation operation);
// Performs operations that are ready; how many is random. To be called by every call of a library.
void Progress();
// Changes what `ready` of operations reads: runs `change` where no operation runs. `change` must
// not make calls of the libraries nor of this header.
void Locked(const std::function<void()>& change);
// Counts objects in Live.
void CountBlasObject(int64_t change);
void CountCudnnObject(int64_t change);
void CountCommunicator(int64_t change);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_
