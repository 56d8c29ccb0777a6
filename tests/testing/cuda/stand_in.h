#ifndef STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_
#define STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"

// CPU stand-ins for the calls of the CUDA runtime, its driver, cuBLASLt, cuDNN and NCCL that the
// CUDA backend makes, linked in place of those libraries (libstagecoach_cuda_stand_in.so), so that
// the backend that ships runs where there is no GPU.
//
// Nothing runs by itself: streams are queues, and whichever thread makes a call of a library
// performs a random number of the operations that are ready, in an order that is random within the
// limits of streams and events. Only operations can access device memory: host code that does so
// dies of SIGSEGV (unless another thread is performing operations at that moment). It is poisoned
// when it is allocated, and has red zones, which are checked when it is freed.
//
// Things that CUDA does not refuse but the backend must not do are refused, with a line on stderr:
// work in the null stream, copies from or to host memory that is not pinned, copies that leave an
// allocation. Kernels run as described in emulator.h. A capture also includes streams that come to
// wait for its events, as branches of the graph: the stream in which it began must wait for the end
// of each.
//
// Each process has GPUs of its own, whose numbers mean nothing to other processes. Ranks of NCCL
// can be in several processes (nccl_clique.h).
namespace stagecoach::testing::cuda {

// The order in which the threads of a block run between two barriers.
enum class ThreadOrder : uint8_t { kAscending, kDescending, kRandom };

struct StandInOptions {
  int gpus = 4;
  int64_t memory_bytes = int64_t{256} << 20;  // of each GPU
  int64_t context_bytes = 0;                  // the part of them that the driver keeps for itself
  int shared_bytes = 227 << 10;               // the most that a block may have
  uint64_t seed = 1;
  ThreadOrder thread_order = ThreadOrder::kRandom;
  // The chance that a call leaves a ready operation for later; below 1.
  double delay = 0.5;
  bool driver = true;              // false: no driver is installed
  int64_t failing_operation = -1;  // see FailOperation
  int64_t cudnn_version = 91900;
  int nccl_channels = 1;  // a power of two
  // Aborts if the groups of two ranks differ in what the two exchange, which NCCL leaves undefined.
  // False: transfers then wait as its batches make them wait.
  bool nccl_groups_match = true;
  bool graphs = true;                      // false: nothing can be captured
  bool memory_operations = true;           // false: the driver has no cuStreamWriteValue32
  cudaError_t launch_error = cudaSuccess;  // returned by every kernel launch
  bool kernels_run = true;                 // false: kernels are launched, but do nothing
  // ncclCommAbort and ncclCommDestroy wait until all other ranks have called theirs, or their
  // processes have ended: in NCCL, threads that serve other ranks of a host do.
  bool nccl_end_waits = false;
  // The process stops itself (SIGSTOP) at its first call of this name; "": never.
  std::string stop_at;
  absl::Duration patience = absl::Seconds(10);  // of a Reset: see NothingIsLeft
};

// The number of operations that a stream's queue in the driver holds; a graph counts as one. A call
// that finds it full returns when there is room, as in CUDA.
inline constexpr int kQueueCapacity = 1024;

// Returns false in test programs that run on GPUs (tests/kernels/cuda/hardware.cc): there the
// machine is real, and nothing fails on purpose.
bool IsSimulated();

// Starts anew. Everything made before must have been released. Without a call, the options are the
// defaults, or those in $STAGECOACH_CUDA_STAND_IN:
// "gpus=2,memory=64MB,seed=7,order=descending,delay=0,driver=0,fail=120,fail_operation=50,
// nccl_end_waits=1,stop_at=ncclCommAbort,launch_error=209".
void Reset(const StandInOptions& options);

// Returns the calls made since Reset, of all libraries (those that release things and ask for
// errors are not counted, and never fail).
int64_t calls();
// Returns the same by name.
std::map<std::string, int64_t> CallsByName();
// Returns $CUDA_DEVICE_MAX_CONNECTIONS at the first call since Reset, which is when the driver
// reads it; "" if it was not set.
std::string MaxConnections();
// Makes call number `call` (1: the next one) fail with an error of its library; 0: none fails.
void FailCall(int64_t call);
// Returns the name of the call that failed on purpose; "" if none has yet.
std::string failed_call();
// Makes the operation after the next `operations` fail on the device: later calls return the error,
// like CUDA's asynchronous errors. -1: none fails.
void FailOperation(int64_t operations);

// Returns the most operations that a stream has had to do at once since the last call (those of a
// graph are counted one by one).
size_t TakeMostPending();

// The existing objects. After a clean end all are 0.
struct Live {
  int64_t allocations = 0, host_allocations = 0, streams = 0, events = 0, graphs = 0;
  int64_t blas_objects = 0, cudnn_objects = 0, communicators = 0;
  int64_t total() const {
    return allocations + host_allocations + streams + events + graphs + blas_objects +
           cudnn_objects + communicators;
  }
};
Live live();

// Returns whether no objects exist. Waits for those that end in the background, as a communicator
// does that had no time left to be destroyed.
bool NothingIsLeft(absl::Duration patience = absl::Seconds(10));

// Makes the current NCCL communicators of rank `rank` fail after `groups` more of their groups have
// been launched, as when another rank has died: ncclCommGetAsyncError returns ncclRemoteError, and
// unfinished groups never finish, until the communicator is aborted.
void FailCommunicator(int rank, int64_t groups = 0);

// ---- For the stand-ins of other libraries.

// Counts a call. Returns true if it must fail.
bool MustFail(const char* call);
// Stops the process here if the options say so. For calls that are not counted.
void StopIfAsked(const char* call);

// Return the calling thread's current GPU, the GPU of a stream, and that of the live allocation
// which contains all of the `bytes` bytes from `address` on; -1: no such stream or allocation
// exists, or there is no driver.
int CurrentGpu();
int GpuOfStream(cudaStream_t stream);
int GpuOfMemory(const void* address, int64_t bytes);

// Work in a stream's order. It is performed, once `ready` (if there is one) returns true, by some
// thread in a call of a library. `ready` is called, any number of times, while the operation is the
// first of its stream. Both run one at a time in the whole process, may touch device memory, and
// must not call the libraries or functions of this header. While the stream is being captured the
// operation becomes part of the graph instead (then there must be no `ready`, and `run` is copied).
// After a failure of its GPU an operation is dropped.
struct Operation {
  const char* name = "";
  std::function<bool()> ready;
  std::function<void()> run;
  int64_t extra_ns = 0;  // additional time of the GPU's clock that passes
};
cudaError_t Enqueue(cudaStream_t stream, Operation operation);
// Performs a random number of ready operations. Every call of a library must call this.
void Progress();
// Changes data that `ready` of operations reads: runs `change` while no operation runs. `change`
// must not call the libraries or functions of this header.
void Locked(const std::function<void()>& change);
// Counts objects in Live.
void CountBlasObject(int64_t change);
void CountCudnnObject(int64_t change);
void CountCommunicator(int64_t change);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_STAND_IN_H_
