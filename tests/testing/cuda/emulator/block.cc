#include "tests/testing/cuda/emulator/block.h"

#include "tests/testing/cuda/emulator/call.h"
#include "tests/testing/cuda/emulator/cluster.h"
#include "tests/testing/cuda/machine.h"
#include "tests/testing/cuda/runner.h"

namespace stagecoach::testing::cuda {
namespace {

// The most dynamic shared memory of a kernel without cudaFuncSetAttribute.
constexpr size_t kDefaultSharedBytes = size_t{48} << 10;

bool Possible(const dim3& blocks, const dim3& threads) {
  return blocks.x >= 1 && blocks.x <= 0x7fffffffu && blocks.y >= 1 && blocks.y <= 65535 &&
         blocks.z >= 1 && blocks.z <= 65535 && threads.x >= 1 && threads.y >= 1 && threads.z >= 1 &&
         threads.x <= kMaxThreadsPerBlock && threads.y <= kMaxThreadsPerBlock && threads.z <= 64 &&
         threads.x * threads.y * threads.z <= kMaxThreadsPerBlock;
}

}  // namespace

int BlockBarrier(bool predicate, Location location) {
  return Runner::Get().BlockBarrier(predicate, location);
}

void ClusterBarrier(Location location) { Runner::Get().ClusterBarrier(location); }

const void* SharedOfBlock(const void* own, unsigned rank, Location location) {
  return Runner::Get().SharedOfBlock(own, rank, location);
}

uint64_t WarpExchange(WarpOperation operation, unsigned mask, uint64_t value, unsigned source,
                      Location location) {
  return Runner::Get().WarpExchange(operation, mask, value, source, location);
}

void WarpTogether(WarpWork work, void* operands, Location location) {
  Runner::Get().WarpTogether(work, operands, location);
}

unsigned Lane() { return Runner::Get().lane(); }

unsigned char* SharedMemoryOfBlock() { return Runner::Get().shared_memory(); }

void StartCopy(void* to, const void* from, bool reads, Location location) {
  Runner::Get().StartCopy(to, from, reads, location);
}

void CommitCopies() { Runner::Get().CommitCopies(); }

void WaitForCopies(size_t groups, Location location) {
  Runner::Get().WaitForCopies(groups, location);
}

uint32_t SharedAddress(const void* address) { return Runner::Get().SharedAddress(address); }

void ShowToProducts() { Runner::Get().ShowToProducts(); }

void BeginProducts(Location location) {
  Runner::Get().DoProductStep({.kind = ProductStep::Kind::kBegin}, location);
}

void StartProduct(const ProductOperands& operands, Location location) {
  Runner::Get().DoProductStep({.kind = ProductStep::Kind::kStart, .operands = &operands}, location);
}

void CommitProducts(Location location) {
  Runner::Get().DoProductStep({.kind = ProductStep::Kind::kCommit}, location);
}

void WaitForProducts(size_t groups, Location location) {
  Runner::Get().DoProductStep({.kind = ProductStep::Kind::kWait, .groups = groups}, location);
}

void WaitForEarlierKernels() { Runner::Get().WaitForEarlierKernels(); }

cudaError_t LaunchThreads(const cudaLaunchConfig_t& config, const void* kernel,
                          std::function<void()> thread) {
  return Call("cudaLaunchKernelEx", [&](Machine& machine, Machine::Lock&) -> cudaError_t {
    if (!Possible(config.gridDim, config.blockDim)) return cudaErrorInvalidConfiguration;
    const auto allowed = machine.shared_bytes.find(kernel);
    if (config.dynamicSmemBytes >
        (allowed == machine.shared_bytes.end() ? kDefaultSharedBytes : allowed->second)) {
      return cudaErrorInvalidValue;
    }
    bool starts_early = false;
    unsigned cluster_blocks = 1;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
      const cudaLaunchAttribute& attribute = config.attrs[i];
      if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
        starts_early = attribute.val.programmaticStreamSerializationAllowed != 0;
      } else if (attribute.id == cudaLaunchAttributeClusterDimension &&
                 attribute.val.clusterDim.y == 1 && attribute.val.clusterDim.z == 1) {
        cluster_blocks = attribute.val.clusterDim.x;
      } else {
        return cudaErrorNotSupported;
      }
    }
    if (cluster_blocks < 1 || cluster_blocks > kMaxClusterBlocks ||
        config.gridDim.x % cluster_blocks != 0) {
      return cudaErrorInvalidClusterSize;
    }
    if (machine.options().launch_error != cudaSuccess) return machine.options().launch_error;
    const StreamState* const stream = machine.Find(config.stream);
    if (stream == nullptr || stream->gpu != CurrentThread().gpu) {
      return cudaErrorInvalidResourceHandle;
    }
    return machine.Enqueue(config.stream,
                           {.name = "kernel",
                            .run = [&machine, grid = Grid{.kernel = kernel,
                                                          .thread = std::move(thread),
                                                          .blocks = config.gridDim,
                                                          .threads = config.blockDim,
                                                          .shared_bytes = config.dynamicSmemBytes,
                                                          .starts_early = starts_early,
                                                          .cluster_blocks = cluster_blocks}] {
                              if (!machine.options().kernels_run) return;
                              Runner::Get().Run(grid, machine.options().thread_order,
                                                machine.random()());
                            }});
  });
}

}  // namespace stagecoach::testing::cuda
