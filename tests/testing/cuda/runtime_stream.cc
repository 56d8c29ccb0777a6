#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/cuda/emulator/call.h"

// Calls of the runtime for streams, events and graphs.

using stagecoach::testing::cuda::Call;
using stagecoach::testing::cuda::Capture;
using stagecoach::testing::cuda::CurrentThread;
using stagecoach::testing::cuda::EventState;
using stagecoach::testing::cuda::Executable;
using stagecoach::testing::cuda::GiveBackCall;
using stagecoach::testing::cuda::Graph;
using stagecoach::testing::cuda::Item;
using stagecoach::testing::cuda::Machine;
using stagecoach::testing::cuda::MustFail;
using stagecoach::testing::cuda::StreamState;

namespace stagecoach::testing::cuda {
namespace {

cudaError_t FailureOf(const Machine& machine, int gpu) {
  return machine.gpus[static_cast<size_t>(gpu)]->failure;
}

// Ends the capture of a stream on which a call was made that a capture does not allow.
cudaError_t SpoilCapture(StreamState& stream, cudaError_t error) {
  stream.capture->valid = false;
  return error;
}

// Does the same for a call on an event that was recorded in the capture.
cudaError_t SpoilCapture(const EventState& event) {
  if (const std::shared_ptr<Capture> capture = event.capture.lock()) capture->valid = false;
  return cudaErrorCapturedEvent;
}

void EndCapture(StreamState& stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread == std::this_thread::get_id()) {
    --CurrentThread().captures;
  }
  for (StreamState* const captured : capture->streams) captured->capture = nullptr;
}

void JoinCapture(StreamState& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  stream.branch = capture->streams.size();
  capture->streams.push_back(&stream);
  capture->graph.branches.resize(capture->streams.size());
}

// Returns whether the first branch waits for the end of every other one. (CUDA also allows waiting
// through a third.)
bool AllJoined(const Graph& graph) {
  const std::vector<Item>& first = graph.branches.front();
  return std::all_of(graph.branches.begin() + 1, graph.branches.end(),
                     [&](const std::vector<Item>& branch) {
                       const Item& last = branch.back();
                       return last.kind == Item::Kind::kRecord &&
                              std::any_of(first.begin(), first.end(), [&](const Item& item) {
                                return item.kind == Item::Kind::kWait && item.mark == last.mark;
                              });
                     });
}

// Returns a launch's own item for `item` of a graph, whose marks are those of `events`. It shares
// the graph, so that a kernel's arguments are not copied each time.
Item LaunchedItem(const std::shared_ptr<const Graph>& graph, const Item& item,
                  const std::vector<std::shared_ptr<EventState>>& events) {
  Item launched = {.kind = item.kind, .takes_room = false};
  if (item.kind == Item::Kind::kOperation) {
    launched.operation = {.name = item.operation.name,
                          .run = [graph, &item] { item.operation.run(); },
                          .extra_ns = item.operation.extra_ns};
  } else {
    launched.event = events[static_cast<size_t>(item.mark)];
    launched.mark = 1;
  }
  return launched;
}

}  // namespace
}  // namespace stagecoach::testing::cuda

namespace cuda = stagecoach::testing::cuda;

// ---- Streams.

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return Call("cudaStreamCreateWithPriority", [&](Machine& machine, Machine::Lock&) {
    // A stream that the null stream waits for would need a null stream.
    if (flags != cudaStreamNonBlocking) {
      return cuda::Refuse("cudaStreamCreateWithPriority", "flags must be cudaStreamNonBlocking");
    }
    *stream = machine.AddStream(CurrentThread().gpu);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr) cuda::EndCapture(*state);
    machine.Destroy(*state);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return Call("cudaStreamWaitEvent", [&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    EventState* const awaited = machine.Find(event);
    if (state == nullptr || awaited == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventWaitDefault) return cudaErrorNotSupported;
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    if (awaited->is_captured) {
      const std::shared_ptr<Capture> capture = awaited->capture.lock();
      if (capture == nullptr) {
        return state->capture == nullptr ? cudaErrorCapturedEvent
                                         : cuda::SpoilCapture(*state, cudaErrorCapturedEvent);
      }
      if (state->capture == nullptr) cuda::JoinCapture(*state, capture);
      if (state->capture != capture) {
        return cuda::SpoilCapture(*state, cudaErrorStreamCaptureMerge);
      }
      capture->graph.branches[state->branch].push_back(
          {.kind = Item::Kind::kWait, .mark = awaited->captured_mark});
      return cudaSuccess;
    }
    if (state->capture != nullptr) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureIsolation);
    }
    if (awaited->recorded == 0) return cudaSuccess;
    machine.Append(*state, {.kind = Item::Kind::kWait,
                            .event = machine.events.at(awaited),
                            .mark = awaited->recorded});
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return Call("cudaStreamSynchronize", [&](Machine& machine, Machine::Lock& lock) {
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureUnsupported);
    }
    machine.RunUntil(lock, [&] { return state->items.empty(); });
    return cuda::FailureOf(machine, state->gpu);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Call("cudaStreamQuery", [&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureUnsupported);
    }
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    return state->items.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

// ---- Events.

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return Call("cudaEventCreateWithFlags", [&](Machine& machine, Machine::Lock&) {
    if ((flags & ~unsigned{cudaEventBlockingSync | cudaEventDisableTiming}) != 0) {
      return cudaErrorInvalidValue;
    }
    auto state = std::make_shared<EventState>();
    state->gpu = CurrentThread().gpu;
    state->timing = (flags & cudaEventDisableTiming) == 0;
    *event = reinterpret_cast<cudaEvent_t>(state.get());
    machine.events[state.get()] = std::move(state);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    return machine.events.erase(reinterpret_cast<EventState*>(event)) == 1
               ? cudaSuccess
               : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call("cudaEventRecord", [&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    EventState* const recorded = machine.Find(event);
    if (state == nullptr || recorded == nullptr || state->gpu != recorded->gpu) {
      return cudaErrorInvalidResourceHandle;
    }
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    recorded->is_captured = state->capture != nullptr;
    if (recorded->is_captured) {
      Capture& capture = *state->capture;
      if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
      recorded->capture = state->capture;
      recorded->captured_mark = capture.graph.marks++;
      capture.graph.branches[state->branch].push_back(
          {.kind = Item::Kind::kRecord, .mark = recorded->captured_mark});
      return cudaSuccess;
    }
    machine.Append(*state, {.kind = Item::Kind::kRecord,
                            .event = machine.events.at(recorded),
                            .mark = ++recorded->recorded});
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call("cudaEventQuery", [&](Machine& machine, Machine::Lock&) {
    EventState* const state = machine.Find(event);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->is_captured) return cuda::SpoilCapture(*state);
    if (CurrentThread().captures > 0) return cudaErrorStreamCaptureUnsupported;
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    return state->reached >= state->recorded ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return Call("cudaEventSynchronize", [&](Machine& machine, Machine::Lock& lock) {
    EventState* const found = machine.Find(event);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->is_captured) return cuda::SpoilCapture(*found);
    if (CurrentThread().captures > 0) return cudaErrorStreamCaptureUnsupported;
    const std::shared_ptr<EventState> state = machine.events.at(found);
    machine.RunUntil(lock, [&, mark = state->recorded] { return state->reached >= mark; });
    return cuda::FailureOf(machine, state->gpu);
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return Call("cudaEventElapsedTime", [&](Machine& machine, Machine::Lock&) {
    const EventState* const from = machine.Find(start);
    const EventState* const to = machine.Find(end);
    if (from == nullptr || to == nullptr || !from->timing || !to->timing || from->recorded == 0 ||
        to->recorded == 0 || from->gpu != to->gpu) {
      return cudaErrorInvalidResourceHandle;
    }
    if (from->is_captured) return cuda::SpoilCapture(*from);
    if (to->is_captured) return cuda::SpoilCapture(*to);
    if (const cudaError_t failure = cuda::FailureOf(machine, from->gpu); failure != cudaSuccess) {
      return failure;
    }
    if (from->reached < from->recorded || to->reached < to->recorded) return cudaErrorNotReady;
    *milliseconds =
        static_cast<float>(static_cast<double>(to->reached_ns - from->reached_ns) / 1e6);
    return cudaSuccess;
  });
}

// ---- Graphs.

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return Call("cudaStreamBeginCapture", [&](Machine& machine, Machine::Lock&) {
    if (!machine.options().graphs) return cudaErrorNotSupported;
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture != nullptr) return cudaErrorIllegalState;
    auto capture = std::make_shared<Capture>();
    capture->graph.gpu = state->gpu;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    cuda::JoinCapture(*state, capture);
    if (mode != cudaStreamCaptureModeRelaxed) ++CurrentThread().captures;
    return cudaSuccess;
  });
}

// The capture ends even if this fails, as it does after a capture was spoilt.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture == nullptr) return cudaErrorIllegalState;
    if (state->branch != 0) return cuda::SpoilCapture(*state, cudaErrorStreamCaptureUnmatched);
    if (state->capture->mode != cudaStreamCaptureModeRelaxed &&
        state->capture->thread != std::this_thread::get_id()) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureWrongThread);
    }
    const bool valid = state->capture->valid;
    auto captured = std::make_unique<Graph>(std::move(state->capture->graph));
    cuda::EndCapture(*state);
    if (MustFail("cudaStreamEndCapture")) return cudaErrorUnknown;
    if (!valid) return cudaErrorStreamCaptureInvalidated;
    if (!cuda::AllJoined(*captured)) return cudaErrorStreamCaptureUnjoined;
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    *graph = reinterpret_cast<cudaGraph_t>(captured.get());
    machine.graphs[captured.get()] = std::move(captured);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return Call(
      "cudaGraphInstantiate",
      [&](Machine& machine, Machine::Lock&) {
        const auto found = machine.graphs.find(reinterpret_cast<Graph*>(graph));
        if (found == machine.graphs.end() || flags != 0) return cudaErrorInvalidValue;
        auto made = std::make_unique<Executable>();
        made->graph = std::make_shared<const Graph>(*found->second);
        *executable = reinterpret_cast<cudaGraphExec_t>(made.get());
        machine.executables[made.get()] = std::move(made);
        return cudaSuccess;
      },
      cudaErrorMemoryAllocation);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return Call("cudaGraphLaunch", [&](Machine& machine, Machine::Lock&) {
    const auto found = machine.executables.find(reinterpret_cast<Executable*>(executable));
    StreamState* const state = machine.Find(stream);
    if (found == machine.executables.end() || state == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    const std::shared_ptr<const Graph> graph = found->second->graph;
    if (state->gpu != graph->gpu) return cudaErrorInvalidValue;
    if (const cudaError_t failure = cuda::FailureOf(machine, state->gpu); failure != cudaSuccess) {
      return failure;
    }
    if (state->capture != nullptr) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureUnsupported);
    }
    std::vector<std::shared_ptr<EventState>> events(static_cast<size_t>(graph->marks));
    for (std::shared_ptr<EventState>& event : events) event = std::make_shared<EventState>();
    for (const std::vector<Item>& branch : graph->branches) {
      const bool is_first = &branch == &graph->branches.front();
      StreamState& own = is_first ? *state : *machine.Find(machine.AddStream(graph->gpu));
      for (const Item& item : branch) {
        Item launched = cuda::LaunchedItem(graph, item, events);
        launched.takes_room = is_first && &item == &branch.front();
        machine.Append(own, std::move(launched));
      }
      if (!is_first) machine.Destroy(own);  // when it has nothing left to do
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    return machine.graphs.erase(reinterpret_cast<Graph*>(graph)) == 1 ? cudaSuccess
                                                                      : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    return machine.executables.erase(reinterpret_cast<Executable*>(executable)) == 1
               ? cudaSuccess
               : cudaErrorInvalidValue;
  });
}
