#include "tests/testing/cuda/nccl/rank.h"

#include "gmock/gmock.h"

namespace stagecoach::testing::cuda {
namespace {

// More calls than any possible work takes.
constexpr int kMany = 2000;

}  // namespace

Rank::Rank(int number, int gpu) : rank(number), gpu_(gpu) {
  Use();
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithPriority(&other_stream, cudaStreamNonBlocking, 0), cudaSuccess);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&out), kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&in), kBytes), cudaSuccess);
  EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&host_), kBytes, 0), cudaSuccess);
  Fill(out, 0xA0 + rank);
  Fill(in, 0);
}

Rank::~Rank() {
  Use();
  EXPECT_EQ(ncclCommAbort(communicator), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
  EXPECT_EQ(cudaFree(out), cudaSuccess);
  EXPECT_EQ(cudaFree(in), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(host_), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other_stream), cudaSuccess);
}

void Rank::Use() { EXPECT_EQ(cudaSetDevice(gpu_), cudaSuccess); }

ncclResult_t Rank::Init(int ranks, const ncclUniqueId& id, int blocking) {
  Use();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking;
  return ncclCommInitRankConfig(&communicator, ranks, id, rank, &config);
}

ncclResult_t Rank::State() {
  ncclResult_t state = ncclNumResults;
  EXPECT_EQ(ncclCommGetAsyncError(communicator, &state), ncclSuccess);
  return state;
}

ncclResult_t Rank::StateAtLast() {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < kMany && state == ncclInProgress; ++i) state = State();
  return state;
}

ncclResult_t Rank::Send(int to, size_t bytes, size_t at) {
  return ncclSend(out + at, bytes, ncclUint8, to, communicator, stream);
}

ncclResult_t Rank::Receive(int from, size_t bytes, size_t at) {
  return ncclRecv(in + at, bytes, ncclUint8, from, communicator, stream);
}

void Rank::Group(const std::function<void()>& post) {
  Use();
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  post();
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
}

bool Rank::IsDone(cudaStream_t of) {
  cudaError_t error = cudaErrorNotReady;
  for (int i = 0; i < kMany && error == cudaErrorNotReady; ++i) error = cudaStreamQuery(of);
  EXPECT_THAT(error, ::testing::AnyOf(cudaSuccess, cudaErrorNotReady));
  return error == cudaSuccess;
}

void Rank::Fill(std::byte* memory, int value) {
  EXPECT_EQ(cudaMemsetAsync(memory, value, kBytes, other_stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
}

std::vector<int> Rank::Received(size_t bytes, size_t at) {
  EXPECT_EQ(cudaMemcpyAsync(host_, in + at, bytes, cudaMemcpyDeviceToHost, other_stream),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other_stream), cudaSuccess);
  std::vector<int> values;
  for (size_t i = 0; i < bytes; ++i) values.push_back(static_cast<int>(host_[i]));
  return values;
}

ncclUniqueId NewId() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  return id;
}

void Nccl::Start(int ranks) {
  const ncclUniqueId id = NewId();
  for (int r = 0; r < ranks; ++r) {
    ranks_.push_back(std::make_unique<Rank>(r));
    EXPECT_EQ(rank(static_cast<size_t>(r)).Init(ranks, id), ncclInProgress);
  }
  for (const auto& started : ranks_) EXPECT_EQ(started->StateAtLast(), ncclSuccess);
}

void Nccl::Connect() {
  for (const auto& self : ranks_) {
    self->Group([&] {
      for (const auto& peer : ranks_) {
        if (peer == self) continue;
        EXPECT_EQ(self->Send(peer->rank, 1), ncclSuccess);
        EXPECT_EQ(self->Receive(peer->rank, 1), ncclSuccess);
      }
    });
  }
  for (const auto& self : ranks_) EXPECT_EQ(self->StateAtLast(), ncclSuccess);
  for (const auto& self : ranks_) EXPECT_TRUE(self->IsDone());
  for (const auto& self : ranks_) self->Fill(self->in, 0);
}

}  // namespace stagecoach::testing::cuda
