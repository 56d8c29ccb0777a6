#include "engine/diagnosis/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"

namespace stagecoach::engine {

// The layout depends on the machine: a recorder is read on the machine, or the kind of machine,
// that wrote it.
struct RecorderMemory {
  struct Header {
    char magic[8];
    int32_t device, devices, replica, replicas;
    char name[512], launch[256], clock[64];
    uint64_t closed_ns;
    uint64_t device_at;  // one more than the number of the entry; 0: the host's place
  };
  union {
    Header header;
    char page[4096];
  };
  uint64_t entries[FlightRecorder::kEntries][8];
};

namespace {

constexpr char kMagic[8] = {'S', 'C', 'R', 'I', 'N', 'G', '1', '\n'};
constexpr int kMaxDevices = 1 << 16;
// Limits that keep sums from overflowing: for times, nine years; for stages and micro-batches.
constexpr uint64_t kMaxNumber = uint64_t{1} << 58;
constexpr int kMaxPlace = 1 << 30;
constexpr size_t kWordsOfEntry = 8;
static_assert(sizeof(RecorderMemory) == FlightRecorder::kBytes &&
              sizeof(RecorderMemory::Header) <= sizeof(RecorderMemory::page));
// Fields of an entry. The number is one more than the entry's, and 0 while that is written.
enum : size_t { kNumber, kBegun, kStarted, kEnded, kRun, kStep, kWhat, kWhere };

using Entry = uint64_t[kWordsOfEntry];
using Word = std::atomic_ref<uint64_t>;

uint64_t Pair(int32_t high, int32_t low) {
  return uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
}
int32_t High(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
int32_t Low(uint64_t pair) { return static_cast<int32_t>(pair & 0xffffffffU); }

uint64_t NowNs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// Returns the same for all processes that have one clock: a boot of the kernel.
std::string NameOfClock() {
  const absl::StatusOr<std::string> boot = base::ReadFile("/proc/sys/kernel/random/boot_id", 64);
  if (boot.ok()) return boot->substr(0, boot->find('\n'));
  char host[64] = {};
  return gethostname(host, sizeof(host) - 1) == 0 ? host : "";
}

template <size_t N>
void CopyText(const std::string& text, char (&to)[N]) {
  text.copy(to, N - 1);
}

// Returns nothing if the text is not terminated.
template <size_t N>
std::optional<std::string> TextOf(const char (&text)[N]) {
  const size_t length = strnlen(text, N);
  return length < N ? std::optional<std::string>(std::string(text, length)) : std::nullopt;
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("not a ring of actions, or a damaged one: ", what));
}

// Release stores, so that a reader that sees a new field also sees that the number has changed.
void Store(uint64_t& word, uint64_t value) { Word(word).store(value, std::memory_order_release); }
uint64_t Load(uint64_t& word) { return Word(word).load(std::memory_order_acquire); }

absl::StatusOr<FlightEvent> ParseEntry(const Entry& entry, int ranks) {
  for (const size_t time : {kBegun, kStarted, kEnded, kRun}) {
    if (entry[time] > kMaxNumber) return Damaged("a time or number out of range");
  }
  const int op = Low(entry[kWhat]) & 0xff;
  const int awaited = Low(entry[kWhat]) >> 8;
  if (op >= schedule::kNumOps || awaited < 0 || awaited >= kNumAwaited || entry[kBegun] == 0) {
    return Damaged("an unknown action");
  }
  const int peer = High(entry[kWhat]);
  for (const int place : {High(entry[kWhere]), Low(entry[kWhere]), peer}) {
    if (place < -1 || place > kMaxPlace || peer >= ranks) return Damaged("no such place");
  }
  FlightEvent recorded = {.run = static_cast<int64_t>(entry[kRun]),
                          .step = static_cast<int64_t>(entry[kStep] >> 1),
                          .trains = (entry[kStep] & 1) != 0,
                          .begun_ns = static_cast<int64_t>(entry[kBegun]),
                          .started_ns = static_cast<int64_t>(entry[kStarted]),
                          .ended_ns = static_cast<int64_t>(entry[kEnded])};
  recorded.what.awaited = static_cast<Awaited>(awaited);
  recorded.what.peer = schedule::Rank(peer);
  schedule::Action& action = recorded.what.action;
  action.op = static_cast<schedule::Op>(op);
  if (schedule::IsCollective(action.op)) {
    action.group = schedule::GroupId(High(entry[kWhere]));
  } else {
    action.stage = schedule::StageId(High(entry[kWhere]));
    action.micro_batch = schedule::MicroBatch(Low(entry[kWhere]));
  }
  return recorded;
}

absl::StatusOr<RecorderOwner> ParseOwner(const RecorderMemory::Header& header) {
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return Damaged("another format");
  const bool is_mesh = header.devices >= 1 && header.devices <= kMaxDevices && header.device >= 0 &&
                       header.device < header.devices && header.replicas >= 1 &&
                       header.devices % header.replicas == 0 &&
                       header.replica == header.device % header.replicas;
  const std::optional<std::string> name = TextOf(header.name), launch = TextOf(header.launch),
                                   clock = TextOf(header.clock);
  if (!is_mesh || !name || !launch || !clock) return Damaged("an owner that cannot be");
  return RecorderOwner{.device = header.device,
                       .devices = header.devices,
                       .replica = header.replica,
                       .replicas = header.replicas,
                       .name = *name,
                       .launch = *launch,
                       .clock = *clock};
}

}  // namespace

int64_t FlightEvent::last_ns() const { return std::max({begun_ns, started_ns, ended_ns}); }

absl::StatusOr<std::unique_ptr<FlightRecorder>> FlightRecorder::Create(RecorderOwner owner,
                                                                       const std::string& path) {
  int file = -1;
  if (!path.empty()) {
    // Another process may still have the old file in its memory.
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return base::WriteError("replace", path);
    file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) return base::WriteError("make", path);
    // All of it is allocated now: a page for which the disk has no room would end the process
    // later.
    if (const int error = posix_fallocate(file, 0, kBytes); error != 0) {
      close(file);
      unlink(path.c_str());
      errno = error;
      return base::WriteError("write", path);
    }
  }
  const int kind = path.empty() ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, kind | MAP_POPULATE, file, 0);
  const int error = errno;
  if (file >= 0) close(file);
  errno = error;
  if (memory == MAP_FAILED) return base::WriteError("map", path.empty() ? "memory" : path);
  auto* const recorder = static_cast<RecorderMemory*>(memory);
  owner.clock = NameOfClock();
  RecorderMemory::Header& header = recorder->header;
  header.device = owner.device;
  header.devices = owner.devices;
  header.replica = owner.replica;
  header.replicas = owner.replicas;
  CopyText(owner.name, header.name);
  CopyText(owner.launch, header.launch);
  CopyText(owner.clock, header.clock);
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return std::unique_ptr<FlightRecorder>(new FlightRecorder(std::move(owner), recorder));
}

FlightRecorder::~FlightRecorder() {
  Close();
  munmap(memory_, kBytes);
}

void FlightRecorder::BeginRun(int64_t step, bool trains) {
  ++run_;
  step_ = step;
  trains_ = trains;
  first_ = next_;
  Store(memory_->header.device_at, 0);
}

void FlightRecorder::Begin(const FlightAction& action) {
  const uint64_t now = NowNs();
  if (next_ != first_) Store(Last()[kEnded], now);
  const schedule::Action& what = action.action;
  const int32_t place = schedule::IsCollective(what.op) ? what.group.value() : what.stage.value();
  const int32_t kind = static_cast<int32_t>(what.op) | static_cast<int32_t>(action.awaited) << 8;
  ++next_;
  uint64_t* const entry = Last();
  Store(entry[kNumber], 0);
  Store(entry[kBegun], now);
  Store(entry[kStarted], 0);
  Store(entry[kEnded], 0);
  Store(entry[kRun], static_cast<uint64_t>(run_));
  Store(entry[kStep], static_cast<uint64_t>(step_) << 1 | (trains_ ? 1U : 0U));
  Store(entry[kWhat], Pair(action.peer.value(), kind));
  Store(entry[kWhere], Pair(place, what.micro_batch.value()));
  Store(entry[kNumber], next_);
}

void FlightRecorder::Start() {
  if (next_ != first_) Store(Last()[kStarted], NowNs());
}

void FlightRecorder::EndRun() {
  Store(memory_->header.device_at, 0);
  if (next_ != first_) Store(Last()[kEnded], NowNs());
  first_ = next_;
}

uint64_t* FlightRecorder::Last() { return memory_->entries[(next_ - 1) % kEntries]; }

void FlightRecorder::DeviceIsAt(int position) {
  Store(memory_->header.device_at, first_ + static_cast<uint64_t>(position) + 1);
}

void FlightRecorder::Close() {
  uint64_t open = 0;
  Word(memory_->header.closed_ns).compare_exchange_strong(open, NowNs());
}

RankRecord FlightRecorder::Read() const {
  const auto copy = std::make_unique<RecorderMemory>();
  std::memcpy(copy->page, memory_->page, offsetof(RecorderMemory::Header, closed_ns));
  copy->header.closed_ns = Load(memory_->header.closed_ns);
  copy->header.device_at = Load(memory_->header.device_at);
  for (size_t i = 0; i < kEntries; ++i) {
    Entry& entry = memory_->entries[i];
    const uint64_t number = Load(entry[kNumber]);
    for (size_t word = 0; word < kWordsOfEntry; ++word) {
      copy->entries[i][word] = Load(entry[word]);
    }
    copy->entries[i][kNumber] = Load(entry[kNumber]) == number ? number : 0;
  }
  absl::StatusOr<RankRecord> record =
      ParseRing({reinterpret_cast<const char*>(copy.get()), sizeof(RecorderMemory)});
  if (!record.ok()) return {.owner = owner_};  // someone else has written to the file
  return *std::move(record);
}

std::string RingPath(const std::string& folder, int device) {
  return absl::StrCat(folder, "/rank-", device, ".ring");
}

absl::StatusOr<RankRecord> ParseRing(absl::string_view bytes) {
  if (bytes.size() != sizeof(RecorderMemory)) {
    return Damaged(absl::StrCat(bytes.size(), " bytes instead of ", sizeof(RecorderMemory)));
  }
  const auto memory = std::make_unique<RecorderMemory>();
  std::memcpy(memory.get(), bytes.data(), sizeof(RecorderMemory));
  RankRecord record;
  ASSIGN_OR_RETURN(record.owner, ParseOwner(memory->header));
  if (memory->header.closed_ns > kMaxNumber) return Damaged("a time out of range");
  record.closed_ns = static_cast<int64_t>(memory->header.closed_ns);
  std::vector<std::pair<uint64_t, FlightEvent>> numbered;
  for (size_t i = 0; i < FlightRecorder::kEntries; ++i) {
    const Entry& entry = memory->entries[i];
    if (entry[kNumber] == 0) continue;
    if ((entry[kNumber] - 1) % FlightRecorder::kEntries != i) return Damaged("an entry elsewhere");
    ASSIGN_OR_RETURN(const FlightEvent action,
                     ParseEntry(entry, record.owner.devices / record.owner.replicas));
    numbered.emplace_back(entry[kNumber], action);
  }
  std::sort(numbered.begin(), numbered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  // The host has issued more than the device has done.
  const uint64_t device_at = memory->header.device_at;
  for (auto& [number, action] : numbered) {
    if (device_at != 0 && number > device_at) break;
    if (number == device_at) action.started_ns = action.ended_ns = 0;
    record.actions.push_back(action);
  }
  return record;
}

absl::StatusOr<std::vector<RankRecord>> ReadRecorders(const std::string& folder) {
  std::error_code error;
  std::vector<RankRecord> found;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".ring") continue;
    const std::string path = entry->path().string();
    ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(path, FlightRecorder::kBytes));
    absl::StatusOr<RankRecord> record = ParseRing(bytes);
    if (!record.ok()) return base::Annotate(record.status(), path);
    found.push_back(*std::move(record));
  }
  if (found.empty()) {
    return base::DataError(absl::StrCat(folder, " has no rings of actions (*.ring)",
                                        error ? ": " + error.message() : ""),
                           absl::StatusCode::kNotFound);
  }
  const RecorderOwner any = found.front().owner;
  std::vector<RankRecord> records(static_cast<size_t>(any.devices));
  for (size_t i = 0; i < records.size(); ++i) {
    const int device = static_cast<int>(i);
    records[i].owner = {.device = device,
                        .devices = any.devices,
                        .replica = device % any.replicas,
                        .replicas = any.replicas,
                        .name = absl::StrCat("rank ", device),
                        .launch = any.launch};
  }
  for (RankRecord& record : found) {
    RankRecord& place = records[static_cast<size_t>(record.owner.device)];
    if (record.owner.launch != any.launch || record.owner.devices != any.devices ||
        record.owner.replicas != any.replicas) {
      return base::DataError(
          absl::StrCat(folder, " has rings of different runs: give each run a folder of its own"),
          absl::StatusCode::kFailedPrecondition);
    }
    place = std::move(record);
  }
  return records;
}

}  // namespace stagecoach::engine
