#include <cuda_runtime_api.h>

#include <memory>
#include <thread>
#include <utility>

#include "tests/testing/cuda/call.h"

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
using stagecoach::testing::cuda::Operation;
using stagecoach::testing::cuda::StreamState;

namespace stagecoach::testing::cuda {
namespace {

cudaError_t FailureOf(const Machine& machine, int gpu) {
  return machine.gpus[static_cast<size_t>(gpu)]->failure;
}

// A call that is not allowed on a stream that is being captured ends the capture.
cudaError_t SpoilCapture(StreamState& stream, cudaError_t error) {
  stream.capture->valid = false;
  return error;
}

void EndCapture(StreamState& stream) {
  if (stream.capture->mode != cudaStreamCaptureModeRelaxed &&
      stream.capture->thread == std::this_thread::get_id()) {
    --CurrentThread().captures;
  }
  stream.capture = nullptr;
}

}  // namespace
}  // namespace stagecoach::testing::cuda

namespace cuda = stagecoach::testing::cuda;

// ---- Streams.

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int /*priority*/) {
  return Call("cudaStreamCreateWithPriority", [&](Machine& machine, Machine::Lock&) {
    // One that the null stream waits for would need a null stream.
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
    if (state->capture != nullptr) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureUnsupported);
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
    state->capture = std::make_unique<Capture>();
    state->capture->mode = mode;
    state->capture->thread = std::this_thread::get_id();
    if (mode != cudaStreamCaptureModeRelaxed) ++CurrentThread().captures;
    return cudaSuccess;
  });
}

// Ends the capture even where it is to fail, as one does that was spoilt before.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  return GiveBackCall([&](Machine& machine, Machine::Lock&) {
    StreamState* const state = machine.Find(stream);
    if (state == nullptr) return cudaErrorInvalidResourceHandle;
    if (state->capture == nullptr) return cudaErrorIllegalState;
    if (state->capture->mode != cudaStreamCaptureModeRelaxed &&
        state->capture->thread != std::this_thread::get_id()) {
      return cuda::SpoilCapture(*state, cudaErrorStreamCaptureWrongThread);
    }
    const bool valid = state->capture->valid;
    auto captured = std::make_unique<Graph>();
    captured->gpu = state->gpu;
    captured->operations = std::move(state->capture->operations);
    cuda::EndCapture(*state);
    if (MustFail("cudaStreamEndCapture")) return cudaErrorUnknown;
    if (!valid) return cudaErrorStreamCaptureInvalidated;
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
    const StreamState* const state = machine.Find(stream);
    if (found == machine.executables.end() || state == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    const std::shared_ptr<const Graph> graph = found->second->graph;
    if (state->gpu != graph->gpu) return cudaErrorInvalidValue;
    for (const Operation& operation : graph->operations) {
      // Shares the graph: what a kernel was launched with is not copied each time.
      const cudaError_t error = machine.Enqueue(
          stream, {.name = operation.name, .run = [graph, &operation] { operation.run(); }},
          /*takes_room=*/&operation == &graph->operations.front());
      if (error != cudaSuccess) return error;
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
