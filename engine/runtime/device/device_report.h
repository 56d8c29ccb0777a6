#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_REPORT_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "partition/plan/sent_bytes.h"

namespace stagecoach::engine {

// Memory, traffic and work of one device; its stages are in the plan's report. Predictions are the
// plan's, from before the first step; measurements are the largest since creation.
struct DeviceReport {
  std::string device;                // its name in its process: "cuda:0"
  int64_t predicted_peak_bytes = 0;  // of all memory in use
  int64_t measured_peak_bytes = 0;
  kernels::AcceleratorMemory accelerator;  // its memory now; 0 if the driver does not answer
  // Most micro-batches, counted per stage, that were between forward and backward pass at once.
  int peak_stashed = 0;
  int64_t predicted_stash_bytes = 0;  // most bytes stashed at once (schedule/memory/memory_plan.h)
  int64_t measured_stash_bytes = 0;
  int64_t predicted_host_bytes = 0;  // of the host's memory, for stashes that are moved there
  int64_t measured_host_bytes = 0;
  partition::SentBytes predicted_sent, measured_sent;  // per step; measured: in the last one
  // Share of the time of steps and evaluations in which it computed: of all on a CPU device, of
  // those that were measured on others.
  double busy = 0.0;
  // For compute actions on an accelerator, 0 on a CPU device: the number, over training and
  // evaluation, that are recorded graphs; how often one was issued as a graph, with one call, and
  // plainly, call by call; and why the first plain one was not issued as a graph.
  int64_t graphs = 0, graph_issues = 0, plain_issues = 0;
  std::string why_plain;
};

// Convert the part of a report that only the device's own process knows (its name and the
// measurements) to a text for the other processes; and the reverse, into a report that has the
// rest. InvalidArgument: the text is not of that form.
std::string MeasurementsToText(const DeviceReport& report);
absl::Status ReadMeasurements(const std::string& text, DeviceReport& report);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_DEVICE_REPORT_H_
