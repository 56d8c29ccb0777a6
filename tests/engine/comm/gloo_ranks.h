#ifndef STAGECOACH_TESTS_ENGINE_COMM_GLOO_RANKS_H_
#define STAGECOACH_TESTS_ENGINE_COMM_GLOO_RANKS_H_

#include <barrier>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "engine/comm/gloo.h"
#include "engine/comm/transport.h"

// Gloo's connections between threads of a test, as if each thread were a process.
namespace stagecoach::engine {

// `told` is called by each rank, before it connects, with what all ranks have told.
inline std::vector<std::shared_ptr<GlooMesh>> GlooMeshes(
    int processes, const std::function<void(const std::vector<std::string>&)>& told = nullptr) {
  const auto count = static_cast<size_t>(processes);
  std::vector<std::shared_ptr<GlooMesh>> meshes(count);
  std::vector<std::string> texts(count);
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  std::barrier all_told(processes);
  std::vector<std::thread> threads;
  for (size_t own = 0; own < count; ++own) {
    threads.emplace_back([&, own] {
      const auto gather = [&](const std::string& text) -> absl::StatusOr<std::vector<std::string>> {
        texts[own] = text;
        all_told.arrive_and_wait();
        std::vector<std::string> gathered = texts;
        all_told.arrive_and_wait();  // before it is called again
        if (told) told(gathered);
        return gathered;
      };
      meshes[own] = GlooMesh::Create();
      STAGECOACH_CHECK_OK(meshes[own]->Connect({.process = static_cast<int>(own),
                                                .processes = all,
                                                .address = "127.0.0.1",
                                                .gather = gather,
                                                .deadline = absl::Minutes(1)}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return meshes;
}

inline std::vector<std::unique_ptr<Transport>> ConnectGloo(int ranks) {
  std::vector<int> processes;
  for (int i = 0; i < ranks; ++i) processes.push_back(i);
  std::vector<std::unique_ptr<Transport>> transports;
  int rank = 0;
  for (const std::shared_ptr<GlooMesh>& mesh : GlooMeshes(ranks)) {
    transports.push_back(mesh->Join(Rank(rank++), processes, /*channel=*/0));
  }
  return transports;
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_COMM_GLOO_RANKS_H_
