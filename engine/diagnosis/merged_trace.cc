#include "engine/diagnosis/merged_trace.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/diagnosis/messages.h"

namespace stagecoach::engine {
namespace {

std::string Quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  explicit Writer(absl::Span<const RankRecord> records) : records_(records) {
    for (const RankRecord& record : records) {
      for (const FlightEvent& action : record.actions) {
        first_ns_ = std::min(first_ns_, action.begun_ns);
        last_ns_ = std::max(last_ns_, action.last_ns());
      }
    }
  }

  std::string Write() {
    for (const RankRecord& record : records_) {
      Add(absl::StrCat(R"("ph":"M","pid":)", record.owner.device,
                       R"(,"name":"process_name","args":{"name":)", Quote(record.owner.name), "}"));
      for (const FlightEvent& action : record.actions) AddAction(record.owner, action);
    }
    const std::vector<RecordedMessage> messages = MessagesOf(records_);
    for (size_t id = 0; id < messages.size(); ++id) AddArrow(id, messages[id]);
    return absl::StrCat(
        R"({"displayTimeUnit":"ms","otherData":{"format":"stagecoach-merged-recorders"},)",
        "\n\"traceEvents\":[\n", absl::StrJoin(events_, ",\n"), "\n]}\n");
  }

 private:
  void Add(absl::string_view event) { events_.push_back(absl::StrCat("{", event, "}")); }

  std::string At(int64_t time_ns) const {  // in us
    const int64_t ns = std::max<int64_t>(0, time_ns - first_ns_);
    return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000);
  }
  std::string Span(int device, int64_t begin_ns, int64_t end_ns) const {
    // An arrow needs a slice of some length at either end.
    const int64_t ns = std::max<int64_t>(1, end_ns - begin_ns);
    return absl::StrFormat(R"("ph":"X","pid":%d,"tid":0,"ts":%s,"dur":%d.%03d)", device,
                           At(begin_ns), ns / 1000, ns % 1000);
  }

  void AddAction(const RecorderOwner& owner, const FlightEvent& action) {
    const bool is_open = action.is_open();
    const int64_t end_ns = is_open ? last_ns_ : action.ended_ns;
    Add(absl::StrCat(Span(owner.device, action.begun_ns, end_ns), R"(,"name":")",
                     ToCode(Alone(action.what.action)), is_open ? " (unfinished)" : "", R"(",)",
                     is_open ? R"("cname":"terrible",)" : "", R"("args":{"step":)", action.step,
                     R"(,"trains":)", action.trains ? "true" : "false", R"(,"run":)", action.run,
                     R"(,"unfinished":)", is_open ? "true" : "false", "}"));
    if (action.what.awaited == Awaited::kNothing) return;
    const int64_t started_ns = action.started_ns == 0 ? end_ns : action.started_ns;
    if (started_ns <= action.begun_ns) return;
    const bool has_peer = action.what.peer.valid();
    const int peer = action.what.peer.value() * owner.replicas + owner.replica;
    Add(absl::StrCat(Span(owner.device, action.begun_ns, started_ns), R"(,"name":"waits for )",
                     has_peer ? absl::StrCat("rank ", peer) : "others",
                     R"(","cname":"grey","args":{})"));
  }

  void AddArrow(size_t id, const RecordedMessage& message) {
    const RankRecord& from = records_[message.from];
    const RankRecord& to = records_[message.to];
    const auto end = [&](const char* phase, int device, int64_t time_ns) {
      Add(absl::StrCat(phase, R"(,"id":)", id, R"(,"pid":)", device, R"(,"tid":0,"ts":)",
                       At(time_ns), R"(,"name":"message","cat":"message")"));
    };
    end(R"("ph":"s")", from.owner.device, from.actions[message.send].begun_ns);
    end(R"("ph":"f","bp":"e")", to.owner.device, to.actions[message.read].started_ns);
  }

  const absl::Span<const RankRecord> records_;
  int64_t first_ns_ = std::numeric_limits<int64_t>::max(), last_ns_ = 0;
  std::vector<std::string> events_;
};

}  // namespace

std::string ToMergedTrace(absl::Span<const RankRecord> records) { return Writer(records).Write(); }

}  // namespace stagecoach::engine
