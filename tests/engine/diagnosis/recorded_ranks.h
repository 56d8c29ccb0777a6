#ifndef STAGECOACH_TESTS_ENGINE_DIAGNOSIS_RECORDED_RANKS_H_
#define STAGECOACH_TESTS_ENGINE_DIAGNOSIS_RECORDED_RANKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/diagnosis/flight_recorder.h"

// Records of ranks, as tests write them down; each rank has the stage of its number. Times are in
// ms.
namespace stagecoach::engine {

struct Times {
  int64_t begun, started, ended;  // 0: not yet
};

// Appends actions of one run to a record.
class RecordedRank {
 public:
  RecordedRank(int device, int devices, int replicas = 1) {
    const int stage = device / replicas, replica = device % replicas;
    record_.owner = {
        .device = device,
        .devices = devices,
        .replica = replica,
        .replicas = replicas,
        .name = absl::StrCat("rank ", device, " (stage ", stage, ", replica ", replica, ")"),
        .clock = "one"};
    stage_ = schedule::StageId(stage);
  }

  RecordedRank& In(int64_t run) {
    run_ = run;
    return *this;
  }
  RecordedRank& Evaluates() {
    trains_ = false;
    return *this;
  }
  RecordedRank& At(const std::string& clock) {
    record_.owner.clock = clock;
    return *this;
  }
  // `peer` is a stage of the schedule.
  RecordedRank& Add(schedule::Op op, int micro_batch, Times times,
                    Awaited awaited = Awaited::kNothing, int peer = -1) {
    FlightEvent action = {.what = {.awaited = awaited, .peer = schedule::Rank(peer)},
                          .run = run_,
                          .step = run_,
                          .trains = trains_,
                          .begun_ns = times.begun * 1'000'000,
                          .started_ns = times.started * 1'000'000,
                          .ended_ns = times.ended * 1'000'000};
    if (schedule::IsCollective(op)) {
      action.what.action = schedule::Collective(op, schedule::GroupId(0));
    } else {
      action.what.action = {
          .op = op, .stage = stage_, .micro_batch = schedule::MicroBatch(micro_batch)};
    }
    record_.actions.push_back(action);
    return *this;
  }
  RecordedRank& Closed(int64_t time) {
    record_.closed_ns = time * 1'000'000;
    return *this;
  }

  operator RankRecord() const { return record_; }  // NOLINT(google-explicit-constructor)

 private:
  RankRecord record_;
  schedule::StageId stage_;
  int64_t run_ = 57;
  bool trains_ = true;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_DIAGNOSIS_RECORDED_RANKS_H_
