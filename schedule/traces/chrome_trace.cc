#include "schedule/traces/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "schedule/traces/check_trace.h"
#include "schedule/traces/trace_parts.h"

namespace stagecoach::schedule {
namespace {

constexpr char kTraceFormat[] = "stagecoach-trace";
constexpr int kTraceVersion = 1;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// ---- Writing ----

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Formats ns as the us that viewers count in, with decimals.
std::string Microseconds(int64_t ns) {
  return absl::StrFormat("%d.%03d", ns / 1000, static_cast<int>(ns % 1000));
}

// Returns a name from the viewer's own palette.
const char* CatapultColor(Op op) {
  switch (op) {
    case Op::kForward:
      return "thread_state_runnable";
    case Op::kBackwardInput:
      return "thread_state_running";
    case Op::kBackwardWeight:
      return "thread_state_iowait";
    case Op::kBackward:
      return "good";
    case Op::kReceiveActivation:
    case Op::kSendActivation:
    case Op::kReceiveGradient:
    case Op::kSendGradient:
      return "grey";
    default:
      return "rail_load";
  }
}

int64_t ShownNs(const TimedAction& timed) {
  const int64_t ns = std::max<int64_t>(0, timed.end_ns - timed.start_ns);
  return RunsBeside(timed.action.op) ? ns + 1 : ns;
}

// Decides which thread of its process shows each action. Viewers garble slices of a thread that
// overlap without one containing the other, so what runs concurrently goes to the first thread of
// its kind that is free again: with n kinds, 1, n + 1, 2n + 1, ... for the first.
class Threads {
 public:
  explicit Threads(const std::vector<TimedAction>& list) {
    for (const TimedAction& timed : list) thread_of_.push_back(Choose(timed));
  }

  size_t Of(size_t action) const { return thread_of_[action]; }
  // Returns the names; index: thread; "" if nothing is shown there.
  std::vector<std::string> Names() const {
    constexpr std::array<const char*, kKinds> kNames = {"send", "receive", "reduce", "offload",
                                                        "fetch"};
    std::vector<std::string> names = {"compute"};
    for (size_t thread = 1; thread < free_ns_.size(); ++thread) {
      const size_t ordinal = (thread - 1) / kKinds + 1;
      names.push_back(free_ns_[thread] == 0
                          ? ""
                          : absl::StrCat(kNames[(thread - 1) % kKinds],
                                         ordinal == 1 ? "" : absl::StrCat(" ", ordinal)));
    }
    return names;
  }

 private:
  size_t Choose(const TimedAction& timed) {
    const Op op = timed.action.op;
    if (!RunsBeside(op)) return 0;
    size_t thread = 1 + KindOf(op);
    while (thread < free_ns_.size() && free_ns_[thread] > timed.start_ns) thread += kKinds;
    free_ns_.resize(std::max(free_ns_.size(), thread + 1), 0);
    free_ns_[thread] = timed.start_ns + ShownNs(timed);
    return thread;
  }

  static constexpr size_t kKinds = 5;
  static size_t KindOf(Op op) {
    if (IsTransfer(op)) return IsSend(op) ? 0 : 1;
    if (IsHostCopy(op)) return op == Op::kOffload ? 3 : 4;
    return 2;
  }

  std::vector<size_t> thread_of_;
  std::vector<int64_t> free_ns_ = {0};
};

void AppendNames(int rank, const Threads& threads, std::vector<std::string>& events) {
  events.push_back(absl::StrCat(R"({"ph":"M","pid":)", rank,
                                R"(,"name":"process_name","args":{"name":"rank )", rank, R"("}})"));
  events.push_back(absl::StrCat(R"({"ph":"M","pid":)", rank,
                                R"(,"name":"process_sort_index","args":{"sort_index":)", rank,
                                "}}"));
  const std::vector<std::string> names = threads.Names();
  for (size_t thread = 0; thread < names.size(); ++thread) {
    if (names[thread].empty()) continue;
    events.push_back(absl::StrCat(R"({"ph":"M","pid":)", rank, R"(,"tid":)", thread,
                                  R"(,"name":"thread_name","args":{"name":")", names[thread],
                                  R"("}})"));
  }
}

std::string SliceEvent(int rank, size_t thread, const TimedAction& timed) {
  const Action& action = timed.action;
  const bool is_collective = IsCollective(action.op);
  std::string args = absl::StrCat(R"("op":")", OpName(action.op),
                                  is_collective ? R"(","group":)" : R"(","stage":)",
                                  is_collective ? action.group.value() : action.stage.value());
  if (HasMicroBatch(action.op)) {
    absl::StrAppend(&args, R"(,"micro_batch":)", action.micro_batch.value());
  }
  if (action.overlaps_next) absl::StrAppend(&args, R"(,"overlaps_next":true)");
  absl::StrAppend(&args, R"(,"reached_ns":)", timed.reached_ns, R"(,"start_ns":)", timed.start_ns,
                  R"(,"end_ns":)", timed.end_ns, R"(,"bytes":)", timed.bytes);
  if (timed.peak_stash_bytes > 0) {
    absl::StrAppend(&args, R"(,"peak_stash_bytes":)", timed.peak_stash_bytes);
  }
  if (timed.as_graph) absl::StrAppend(&args, R"(,"as_graph":true)");
  return absl::StrCat(R"({"ph":"X","pid":)", rank, R"(,"tid":)", thread, R"(,"ts":)",
                      Microseconds(timed.start_ns), R"(,"dur":)", Microseconds(ShownNs(timed)),
                      R"(,"name":")", ToCode(action), R"(","cname":")", CatapultColor(action.op),
                      R"(","args":{)", args, "}}");
}

// Writes one end of an arrow; `phase` is the start of the event: its "ph" and what belongs to it.
std::string ArrowEnd(const char* phase, size_t id, const char* name, Rank rank, size_t thread,
                     int64_t time_ns) {
  return absl::StrCat("{", phase, R"(,"id":)", id, R"(,"pid":)", rank.value(), R"(,"tid":)", thread,
                      R"(,"ts":)", Microseconds(time_ns), R"(,"name":")", name,
                      R"(","cat":"message"})");
}

void AppendArrows(const Trace& trace, const std::vector<Threads>& threads,
                  std::vector<std::string>& events) {
  const std::vector<Delivery> messages = DeliveriesOf(trace);
  for (size_t id = 0; id < messages.size(); ++id) {
    const Delivery& message = messages[id];
    const TimedAction& send = trace.list_of(message.from)[message.send];
    const TimedAction& receive = trace.list_of(message.to)[message.receive];
    const char* name = send.action.op == Op::kSendActivation ? "activation" : "gradient";
    const size_t from = threads[static_cast<size_t>(message.from.value())].Of(message.send);
    const size_t to = threads[static_cast<size_t>(message.to.value())].Of(message.receive);
    events.push_back(ArrowEnd(R"("ph":"s")", id, name, message.from, from, send.start_ns));
    events.push_back(ArrowEnd(R"("ph":"f","bp":"e")", id, name, message.to, to,
                              std::max(receive.start_ns, receive.end_ns)));
  }
}

std::string OtherData(const Trace& trace) {
  const std::string ranks =
      absl::StrJoin(trace.rank_of_stage, ",",
                    [](std::string* text, Rank rank) { absl::StrAppend(text, rank.value()); });
  const std::string counts = absl::StrJoin(
      trace.actions, ",", [](std::string* text, const std::vector<TimedAction>& list) {
        absl::StrAppend(text, list.size());
      });
  return absl::StrCat(R"({"format":")", kTraceFormat, R"(","version":)", kTraceVersion,
                      R"(,"name":)", Quoted(trace.name), R"(,"source":)", Quoted(trace.source),
                      R"(,"micro_batches":)", trace.num_micro_batches, R"(,"rank_of_stage":[)",
                      ranks, R"(],"actions_per_rank":[)", counts, R"(],"step_ns":)", trace.step_ns,
                      "}");
}

// ---- Reading ----

absl::StatusOr<Op> ReadOp(base::ObjectReader& args) {
  ASSIGN_OR_RETURN(const std::string name, args.RequiredString("op"));
  if (const std::optional<Op> op = OpNamed(name)) return *op;
  std::vector<std::string> known;
  for (int i = 0; i < kNumOps; ++i) known.emplace_back(OpName(static_cast<Op>(i)));
  return args.Error("op", absl::StrCat("must be one of ", absl::StrJoin(known, ", ")));
}

absl::StatusOr<TimedAction> ReadArgs(base::ObjectReader args) {
  TimedAction timed;
  ASSIGN_OR_RETURN(timed.action.op, ReadOp(args));
  const bool is_collective = IsCollective(timed.action.op);
  ASSIGN_OR_RETURN(const int64_t whose, args.RequiredInt64(is_collective ? "group" : "stage",
                                                           {.min = 0, .max = kMaxInt32}));
  if (is_collective) {
    timed.action.group = GroupId(static_cast<int32_t>(whose));
  } else {
    timed.action.stage = StageId(static_cast<int32_t>(whose));
  }
  if (HasMicroBatch(timed.action.op)) {
    ASSIGN_OR_RETURN(const int64_t micro_batch,
                     args.RequiredInt64("micro_batch", {.min = 0, .max = kMaxInt32}));
    timed.action.micro_batch = MicroBatch(static_cast<int32_t>(micro_batch));
  }
  ASSIGN_OR_RETURN(timed.action.overlaps_next, args.OptionalBool("overlaps_next", false));
  constexpr base::Int64Range kTime = {.min = 0, .max = kMaxTraceNs};
  ASSIGN_OR_RETURN(timed.reached_ns, args.RequiredInt64("reached_ns", kTime));
  ASSIGN_OR_RETURN(timed.start_ns, args.RequiredInt64("start_ns", kTime));
  ASSIGN_OR_RETURN(timed.end_ns, args.RequiredInt64("end_ns", kTime));
  ASSIGN_OR_RETURN(timed.bytes, args.RequiredInt64("bytes", {.min = 0}));
  ASSIGN_OR_RETURN(timed.peak_stash_bytes, args.OptionalInt64("peak_stash_bytes", 0, {.min = 0}));
  ASSIGN_OR_RETURN(timed.as_graph, args.OptionalBool("as_graph", false));
  RETURN_IF_ERROR(args.Finish());
  return timed;
}

// Fills everything except the actions, and returns their number per rank.
absl::StatusOr<std::vector<int64_t>> ReadOtherData(base::ObjectReader data, Trace& trace) {
  ASSIGN_OR_RETURN(const std::string format, data.RequiredString("format"));
  if (format != kTraceFormat) {
    return data.Error("format", absl::StrCat("must be \"", kTraceFormat, "\""));
  }
  ASSIGN_OR_RETURN(const int64_t version, data.RequiredInt64("version"));
  if (version != kTraceVersion) {
    return data.Error(
        "version", absl::StrCat("only version ", kTraceVersion, " can be read, found ", version));
  }
  ASSIGN_OR_RETURN(trace.name, data.RequiredString("name"));
  ASSIGN_OR_RETURN(trace.source, data.RequiredString("source"));
  ASSIGN_OR_RETURN(const int64_t micro_batches,
                   data.RequiredInt64("micro_batches", {.min = 0, .max = kMaxInt32}));
  trace.num_micro_batches = static_cast<int>(micro_batches);
  ASSIGN_OR_RETURN(trace.step_ns, data.RequiredInt64("step_ns", {.min = 0, .max = kMaxTraceNs}));
  ASSIGN_OR_RETURN(const base::ArrayReader counts, data.RequiredArray("actions_per_rank"));
  std::vector<int64_t> actions_per_rank;
  for (size_t r = 0; r < counts.size(); ++r) {
    ASSIGN_OR_RETURN(actions_per_rank.emplace_back(), counts.Int64(r, {.min = 0}));
  }
  ASSIGN_OR_RETURN(const base::ArrayReader ranks, data.RequiredArray("rank_of_stage"));
  for (size_t s = 0; s < ranks.size(); ++s) {
    const auto num_ranks = static_cast<int64_t>(counts.size());
    ASSIGN_OR_RETURN(const int64_t rank,
                     ranks.Int64(s, {.min = 0, .max = std::max<int64_t>(0, num_ranks - 1)}));
    trace.rank_of_stage.emplace_back(static_cast<int32_t>(rank));
  }
  RETURN_IF_ERROR(data.Finish());
  return actions_per_rank;
}

absl::Status ReadEvent(base::ObjectReader event, Trace& trace) {
  ASSIGN_OR_RETURN(const std::string phase, event.RequiredString("ph"));
  if (phase != "X") return absl::OkStatus();
  for (const char* key : {"tid", "ts", "dur", "name", "cname"}) event.Has(key);
  if (trace.actions.empty()) return event.Error("pid", "the trace has no ranks");
  ASSIGN_OR_RETURN(const int64_t rank,
                   event.RequiredInt64("pid", {.min = 0, .max = trace.num_ranks() - 1}));
  ASSIGN_OR_RETURN(base::ObjectReader args, event.RequiredObject("args"));
  ASSIGN_OR_RETURN(const TimedAction timed, ReadArgs(std::move(args)));
  trace.actions[static_cast<size_t>(rank)].push_back(timed);
  return event.Finish();
}

}  // namespace

std::string ToChromeTrace(const Trace& trace) {
  std::vector<std::string> events;
  std::vector<Threads> threads;
  for (int r = 0; r < trace.num_ranks(); ++r) {
    const std::vector<TimedAction>& list = trace.list_of(Rank(r));
    threads.emplace_back(list);
    AppendNames(r, threads.back(), events);
    for (size_t i = 0; i < list.size(); ++i) {
      events.push_back(SliceEvent(r, threads.back().Of(i), list[i]));
    }
  }
  AppendArrows(trace, threads, events);
  return absl::StrCat(R"({"displayTimeUnit":"ms","otherData":)", OtherData(trace),
                      ",\n\"traceEvents\":[\n", absl::StrJoin(events, ",\n"), "\n]}\n");
}

namespace {

absl::StatusOr<Trace> TraceOf(const nlohmann::json& json) {
  ASSIGN_OR_RETURN(base::ObjectReader file, base::ObjectReader::Create(json));
  file.Has("displayTimeUnit");
  Trace trace;
  if (!file.Has("otherData")) {
    return absl::InvalidArgumentError(
        "$: the key \"otherData\" is missing: not a trace of Stagecoach");
  }
  ASSIGN_OR_RETURN(base::ObjectReader data, file.RequiredObject("otherData"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> actions_per_rank,
                   ReadOtherData(std::move(data), trace));
  trace.actions.resize(actions_per_rank.size());
  ASSIGN_OR_RETURN(const base::ArrayReader events, file.RequiredArray("traceEvents"));
  for (size_t i = 0; i < events.size(); ++i) {
    ASSIGN_OR_RETURN(base::ObjectReader event, events.Object(i));
    RETURN_IF_ERROR(ReadEvent(std::move(event), trace));
  }
  RETURN_IF_ERROR(file.Finish());
  for (size_t r = 0; r < actions_per_rank.size(); ++r) {
    if (static_cast<size_t>(actions_per_rank[r]) == trace.actions[r].size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("$.traceEvents: ", trace.actions[r].size(), " slices of rank ", r,
                     ", but $.otherData.actions_per_rank[", r, "] says ", actions_per_rank[r]));
  }
  RETURN_IF_ERROR(CheckTrace(trace));
  return trace;
}

}  // namespace

absl::StatusOr<Trace> ParseChromeTrace(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text, {.max_bytes = kMaxTraceBytes}));
  absl::StatusOr<Trace> trace = TraceOf(json);
  if (!trace.ok()) return base::WithJsonPlace(trace.status(), text);
  return trace;
}

absl::Status WriteTrace(const Trace& trace, const std::string& path) {
  RETURN_IF_ERROR(CheckTrace(trace));
  const std::string text = ToChromeTrace(trace);
  if (static_cast<int64_t>(text.size()) > kMaxTraceBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": the trace would take ", text.size(), " bytes, more than the ",
                     kMaxTraceBytes, " that can be read back; trace fewer micro-batches"));
  }
  return base::WriteFileAtomically(path, text);
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxTraceBytes));
  absl::StatusOr<Trace> trace = ParseChromeTrace(text);
  if (!trace.ok()) return base::InFile(trace.status(), path);
  return trace;
}

}  // namespace stagecoach::schedule
