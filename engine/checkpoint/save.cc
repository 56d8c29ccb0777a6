#include "engine/checkpoint/save.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {
namespace {

using base::FileWriter;

constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr size_t kMostUnsynced = 8;  // files
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr int64_t kMaxPartBytes = int64_t{64} << 20;

// Adds `bytes` bytes of a file that is read back, from `begin` on, to all the hashers.
absl::Status HashPart(const base::FileReader& file, int64_t begin, int64_t bytes,
                      absl::Span<base::Hasher* const> hashers) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(bytes, kChunkBytes)));
  for (int64_t done = 0; done < bytes; done += kChunkBytes) {
    const auto part =
        absl::MakeSpan(buffer).first(static_cast<size_t>(std::min(bytes - done, kChunkBytes)));
    RETURN_IF_ERROR(file.ReadAt(begin + done, part));
    for (base::Hasher* const hasher : hashers) hasher->Update(part);
  }
  return absl::OkStatus();
}

std::string TemporaryName(const SaveTask& task) {
  return absl::StrCat(kSavingPrefix, CheckpointName(task.manifest.step), "-", task.id);
}

// One process's part of one save.
class Saving {
 public:
  Saving(base::SystemCalls& calls, const SaveTask& task, const std::atomic<bool>& cancelled)
      : calls_(calls),
        task_(task),
        cancelled_(cancelled),
        name_(CheckpointName(task.manifest.step)),
        temporary_(TemporaryName(task)),
        path_(absl::StrCat(task.folder, "/", temporary_)),
        own_(task.files.size()) {
    std::map<std::pair<ParameterId, int>, std::pair<size_t, size_t>> places;
    for (size_t file = 0; file < task.files.size(); ++file) {
      const std::vector<ShardTensor>& tensors = task.files[file].tensors;
      for (size_t i = 0; i < tensors.size(); ++i) {
        places[{tensors[i].parameter, tensors[i].state}] = {file, i};
      }
    }
    for (const HostPiece& piece : task.pieces) {
      const auto found = places.find({piece.parameter, piece.state});
      STAGECOACH_CHECK(found != places.end(), "a piece that no file has");
      own_[found->second.first].push_back({found->second.second, &piece, ""});
    }
  }

  absl::StatusOr<std::string> Run() {
    RETURN_IF_ERROR(WriteAll());
    if (task_.processes > 1) RETURN_IF_ERROR(ReadBackTogether());
    const std::string final_path = absl::StrCat(task_.folder, "/", name_);
    if (task_.process > 0) return final_path;
    Manifest manifest = task_.manifest;
    ASSIGN_OR_RETURN(manifest.files, TakeAllSaved());
    RETURN_IF_ERROR(WriteManifest(manifest));
    has_folder_ = false;  // it is about to get another name
    RETURN_IF_ERROR(Commit(final_path));
    RETURN_IF_ERROR(RemoveOthers(calls_, task_.folder, task_.retention));
    return final_path;
  }

  // Explains a failure, which is the other process's if that has removed the folder meanwhile.
  absl::Status Explain(const absl::Status& failure) const {
    return has_folder_ && !base::Exists(path_) ? GivenUpElsewhere() : failure;
  }

  // Called after a failure. Renames the folder, which needs no space on the disk, so that the other
  // processes do not wait for this one; process 0 removes the folder as far as it can.
  void GiveUp() {
    const std::string removing = absl::StrCat(task_.folder, "/", kRemovingPrefix, temporary_);
    calls_.Rename(path_.c_str(), removing.c_str());
    if (task_.process == 0) RemoveLeftovers(calls_, task_.folder, "").IgnoreError();
  }

 private:
  static constexpr char kWritten[] = "written";
  static constexpr char kHashed[] = "hashed";

  // A piece in a file.
  struct OwnPiece {
    size_t tensor;
    const HostPiece* piece;
    std::string hash;  // once it is written
  };

  bool IsOwner(size_t file) const { return task_.owners[file] == task_.process; }
  bool HasPartOf(size_t file) const {
    if (task_.links_frozen && task_.files[file].is_frozen) return false;
    return IsOwner(file) || !own_[file].empty();
  }
  std::string PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }
  std::string PhaseName(absl::string_view phase, int process) const {
    return absl::StrCat(".", phase, "-", process);
  }

  absl::Status GivenUpElsewhere() const {
    return absl::AbortedError(
        absl::StrCat("saving to ", task_.folder, ": another process could not write its part"));
  }

  absl::Status CheckCancelled() const {
    if (!cancelled_.load(std::memory_order_relaxed)) return absl::OkStatus();
    return absl::CancelledError("the run has ended before the checkpoint was written");
  }

  // Waits until the file or folder exists; `what` tells what its absence means, for an error.
  absl::Status Await(const std::string& path, const std::string& what) const {
    const base::Deadline deadline = base::Deadline::After(task_.deadline);
    while (!base::Exists(path)) {
      RETURN_IF_ERROR(CheckCancelled());
      if (!base::Exists(path_)) return GivenUpElsewhere();
      if (deadline.Expired()) {
        return absl::DeadlineExceededError(absl::StrCat("saving to ", task_.folder, ": ", what,
                                                        " within ",
                                                        absl::FormatDuration(task_.deadline)));
      }
      absl::SleepFor(kPollInterval);
    }
    return absl::OkStatus();
  }

  // Syncs files some time after they were written, so that the disk and this thread work
  // concurrently; a single process also reads them back meanwhile. Among processes, the others must
  // first be able to read them.
  absl::Status WriteAll() {
    struct Written {
      size_t file;
      FileWriter writer;
    };
    std::deque<Written> pending;
    const auto finish = [&](Written& written) -> absl::Status {
      if (task_.processes == 1) RETURN_IF_ERROR(ReadBack(written.file));
      return written.writer.Sync();
    };
    for (size_t file = 0; file < own_.size(); ++file) {
      if (!HasPartOf(file)) continue;
      RETURN_IF_ERROR(CheckCancelled());
      ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Open(calls_, PathOf(task_.files[file].name)));
      RETURN_IF_ERROR(Write(file, writer));
      writer.StartSync();
      pending.push_back({file, std::move(writer)});
      if (pending.size() <= kMostUnsynced) continue;
      RETURN_IF_ERROR(finish(pending.front()));
      pending.pop_front();
    }
    for (Written& written : pending) RETURN_IF_ERROR(finish(written));
    return absl::OkStatus();
  }

  absl::Status Write(size_t file, FileWriter& writer) {
    const ShardFile& shard = task_.files[file];
    if (IsOwner(file)) RETURN_IF_ERROR(writer.WriteAt(0, shard.header));
    for (OwnPiece& own : own_[file]) {
      const absl::Span<const std::byte> bytes = own.piece->bytes;
      const int64_t begin = BeginOf(shard, own);
      own.hash = base::HashOf(bytes);
      for (int64_t done = 0; done < std::ssize(bytes); done += kChunkBytes) {
        RETURN_IF_ERROR(CheckCancelled());
        const auto rest = bytes.subspan(static_cast<size_t>(done));
        RETURN_IF_ERROR(writer.WriteAt(
            begin + done, rest.first(std::min(rest.size(), static_cast<size_t>(kChunkBytes)))));
      }
    }
    return absl::OkStatus();
  }

  static int64_t BeginOf(const ShardFile& shard, const OwnPiece& own) {
    return shard.tensors[own.tensor].begin + own.piece->first * int64_t{sizeof(float)};
  }

  absl::Status ReadBack(size_t file) {
    if (!HasPartOf(file)) return absl::OkStatus();
    RETURN_IF_ERROR(CheckCancelled());
    ASSIGN_OR_RETURN(const base::FileReader reader,
                     base::FileReader::Open(PathOf(task_.files[file].name)));
    RETURN_IF_ERROR(CheckPieces(file, reader));
    return IsOwner(file) ? HashFile(file, reader) : absl::OkStatus();
  }

  // Compares the pieces in the file that are not whole tensors, or all pieces of a file that
  // another process hashes.
  absl::Status CheckPieces(size_t file, const base::FileReader& reader) const {
    const ShardFile& shard = task_.files[file];
    for (const OwnPiece& own : own_[file]) {
      if (IsOwner(file) && IsWhole(shard, own)) continue;
      base::Hasher hasher;
      RETURN_IF_ERROR(
          HashPart(reader, BeginOf(shard, own), std::ssize(own.piece->bytes), {&hasher}));
      if (hasher.HexDigest() != own.hash) return NotAsWritten(shard, own.tensor);
    }
    return absl::OkStatus();
  }

  static bool IsWhole(const ShardFile& shard, const OwnPiece& own) {
    return std::ssize(own.piece->bytes) == shard.tensors[own.tensor].bytes();
  }

  absl::Status NotAsWritten(const ShardFile& shard, size_t tensor) const {
    return absl::DataLossError(absl::StrCat(PathOf(shard.name), ": tensor \"",
                                            shard.tensors[tensor].name,
                                            "\" reads otherwise than it was written"));
  }

  absl::Status HashFile(size_t file, const base::FileReader& reader) {
    const ShardFile& shard = task_.files[file];
    SavedFile saved{.name = shard.name, .bytes = shard.bytes()};
    base::Hasher whole, header;
    RETURN_IF_ERROR(HashPart(reader, 0, std::ssize(shard.header), {&whole, &header}));
    if (reader.size() != saved.bytes || header.HexDigest() != base::HashOf(shard.header)) {
      return absl::DataLossError(
          absl::StrCat(PathOf(shard.name), " reads otherwise than it was written"));
    }
    for (const ShardTensor& tensor : shard.tensors) {
      base::Hasher own;
      RETURN_IF_ERROR(HashPart(reader, tensor.begin, tensor.bytes(), {&whole, &own}));
      saved.tensors.push_back({tensor.name, tensor.shape, tensor.quantized, own.HexDigest()});
    }
    for (const OwnPiece& own : own_[file]) {
      if (IsWhole(shard, own) && saved.tensors[own.tensor].hash != own.hash) {
        return NotAsWritten(shard, own.tensor);
      }
    }
    saved.hash = whole.HexDigest();
    saved_.push_back(std::move(saved));
    return absl::OkStatus();
  }

  // Reads back among processes, once this one has written: process 0 then has all of saved_.
  absl::Status ReadBackTogether() {
    RETURN_IF_ERROR(Tell(kWritten, "[]"));
    RETURN_IF_ERROR(AwaitAll(kWritten).status());
    for (size_t file = 0; file < own_.size(); ++file) RETURN_IF_ERROR(ReadBack(file));
    RETURN_IF_ERROR(Tell(kHashed, ToJson(absl::MakeConstSpan(saved_))));
    return task_.process == 0 ? CollectSaved() : absl::OkStatus();
  }

  // Tells the other processes that this one has reached the phase; they read `text` or nothing.
  absl::Status Tell(absl::string_view phase, const std::string& text) {
    const std::string path = PathOf(PhaseName(phase, task_.process));
    const std::string unfinished = absl::StrCat(path, ".unfinished");
    RETURN_IF_ERROR(WriteFile(unfinished, text));
    if (calls_.Rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
    return base::WriteError("create", path);
  }

  // Returns what the others have told, by process; for this one, no files.
  absl::StatusOr<std::vector<std::string>> AwaitAll(absl::string_view phase) const {
    std::vector<std::string> texts(static_cast<size_t>(task_.processes), "[]");
    for (int process = 0; process < task_.processes; ++process) {
      if (process == task_.process) continue;
      const std::string path = PathOf(PhaseName(phase, process));
      RETURN_IF_ERROR(
          Await(path, absl::StrCat("process ", process, " has not ", phase, " its part")));
      ASSIGN_OR_RETURN(texts[static_cast<size_t>(process)], base::ReadFile(path, kMaxPartBytes));
    }
    return texts;
  }

  // Removes the files by which processes told each other.
  absl::Status CollectSaved() {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, AwaitAll(kHashed));
    for (int process = 0; process < task_.processes; ++process) {
      ASSIGN_OR_RETURN(std::vector<SavedFile> theirs,
                       ParseSavedFiles(texts[static_cast<size_t>(process)]));
      std::move(theirs.begin(), theirs.end(), std::back_inserter(saved_));
      for (absl::string_view phase : {kWritten, kHashed}) {
        const std::string path = PathOf(PhaseName(phase, process));
        if (calls_.RemoveFile(path.c_str()) != 0) return base::WriteError("remove", path);
      }
    }
    return absl::OkStatus();
  }

  // Returns the files in the order of the layers.
  absl::StatusOr<std::vector<SavedFile>> TakeAllSaved() {
    std::map<std::string, SavedFile> by_name;
    for (const SavedFile& file : task_.linked) by_name[file.name] = file;
    for (SavedFile& file : saved_) by_name[file.name] = std::move(file);
    std::vector<SavedFile> files;
    for (const ShardFile& shard : task_.files) {
      const auto found = by_name.find(shard.name);
      if (found == by_name.end()) {
        return absl::InternalError(absl::StrCat("no process has hashed ", PathOf(shard.name)));
      }
      files.push_back(std::move(found->second));
    }
    return files;
  }

  absl::Status WriteFile(const std::string& path, const std::string& text) {
    ASSIGN_OR_RETURN(FileWriter writer, FileWriter::Open(calls_, path));
    RETURN_IF_ERROR(writer.WriteAt(0, text));
    return writer.Sync();
  }

  absl::Status WriteManifest(const Manifest& manifest) {
    const std::string text = ToJson(manifest);
    RETURN_IF_ERROR(WriteFile(PathOf(kManifestHashName),
                              absl::StrCat(base::HashOf(text), "  ", kManifestName, "\n")));
    RETURN_IF_ERROR(WriteFile(PathOf(kManifestName), text));
    return SyncFolder(calls_, path_);
  }

  absl::Status Commit(const std::string& final_path) {
    RETURN_IF_ERROR(CheckCancelled());
    if (base::IsFolder(final_path)) {
      // If there is a checkpoint of the same step, this replaces it, in one call if the file system
      // can.
      if (calls_.Exchange(path_.c_str(), final_path.c_str()) == 0) {
        RETURN_IF_ERROR(SyncFolder(calls_, task_.folder));
        return RemoveCheckpoint(calls_, task_.folder, temporary_);
      }
      RETURN_IF_ERROR(RemoveCheckpoint(calls_, task_.folder, name_));
    } else if (base::Exists(final_path)) {
      return absl::AlreadyExistsError(
          absl::StrCat(final_path, " is there, but is not a folder of a checkpoint"));
    }
    if (calls_.Rename(path_.c_str(), final_path.c_str()) != 0) {
      return base::WriteError("create", final_path);
    }
    return SyncFolder(calls_, task_.folder);
  }

  base::SystemCalls& calls_;
  const SaveTask& task_;
  const std::atomic<bool>& cancelled_;
  const std::string name_;        // of the checkpoint's folder
  const std::string temporary_;   // name of the temporary one
  const std::string path_;        // path of the temporary one
  bool has_folder_ = true;        // until it is renamed
  std::vector<SavedFile> saved_;  // those that this process has hashed, or others have reported
  std::vector<std::vector<OwnPiece>> own_;  // by file
};

}  // namespace

absl::Status BeginCheckpoint(base::SystemCalls& calls, const SaveTask& task) {
  const std::string path = absl::StrCat(task.folder, "/", TemporaryName(task));
  RETURN_IF_ERROR(RemoveLeftovers(calls, task.folder, TemporaryName(task)));
  if (calls.MakeFolder(path.c_str()) != 0) return base::WriteError("create", path);
  return absl::OkStatus();
}

std::vector<SavedFile> LinkFrozenFiles(base::SystemCalls& calls, const SaveTask& task,
                                       const std::string& earlier,
                                       absl::Span<const SavedFile> saved) {
  const std::string folder = absl::StrCat(task.folder, "/", TemporaryName(task));
  std::vector<SavedFile> linked;
  const auto link = [&](const ShardFile& shard) {
    const auto found = std::find_if(saved.begin(), saved.end(),
                                    [&](const SavedFile& file) { return file.name == shard.name; });
    if (found == saved.end()) return false;
    const std::string from = absl::StrCat(earlier, "/", shard.name);
    const absl::StatusOr<base::FileReader> reader = base::FileReader::Open(from);
    if (!reader.ok() || reader->size() != found->bytes) return false;
    const std::string to = absl::StrCat(folder, "/", shard.name);
    if (calls.Link(from.c_str(), to.c_str()) != 0) return false;
    linked.push_back(*found);
    return true;
  };
  for (const ShardFile& shard : task.files) {
    if (!shard.is_frozen || link(shard)) continue;
    for (const SavedFile& file : linked) {
      calls.RemoveFile(absl::StrCat(folder, "/", file.name).c_str());
    }
    return {};
  }
  return linked;
}

absl::Status CheckSeesFolder(const SaveTask& task) {
  const std::string path = absl::StrCat(task.folder, "/", TemporaryName(task));
  if (base::Exists(path)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", task.process, " does not see ", path,
      ", which process 0 has made: all processes must share the folder of checkpoints"));
}

absl::StatusOr<std::string> WriteCheckpoint(base::SystemCalls& calls, const SaveTask& task,
                                            const std::atomic<bool>& cancelled) {
  Saving saving(calls, task, cancelled);
  absl::StatusOr<std::string> result = saving.Run();
  if (result.ok()) return result;
  const absl::Status why = saving.Explain(result.status());
  saving.GiveUp();
  return why;
}

}  // namespace stagecoach::engine
