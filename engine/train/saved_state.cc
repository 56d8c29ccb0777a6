#include "engine/train/saved_state.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/runtime/executor.h"
#include "kernels/bfloat16.h"
#include "kernels/staging.h"

namespace stagecoach::engine {
namespace {

// Returns an id that tells saves apart whose processes see one folder.
std::string NewId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x", random(), random());
}

// Returns the files that a run saves and restores: without those of the optimizer, if it only
// predicts.
absl::StatusOr<std::vector<ShardFile>> FilesOf(const PreparedRun& run) {
  Optimizer optimizer = run.optimizer;
  if (!run.plan().trains()) optimizer.ema_decay = 0.0F;  // it has no averages of its own
  ASSIGN_OR_RETURN(std::vector<ShardFile> files, ShardFilesOf(run.profile.parameters, optimizer));
  if (!run.plan().trains()) {
    std::erase_if(files, [](const ShardFile& file) { return IsOptimizerFile(file.name); });
  }
  return files;
}

// Returns the file of a layer that has a tensor; null: there is none.
const SavedFile* FileWith(const Manifest& manifest, int layer, const std::string& tensor) {
  const auto found =
      std::find_if(manifest.files.begin(), manifest.files.end(), [&](const SavedFile& file) {
        return LayerOfFile(file.name) == layer &&
               std::any_of(file.tensors.begin(), file.tensors.end(),
                           [&](const auto& other) { return other.name == tensor; });
      });
  return found == manifest.files.end() ? nullptr : &*found;
}

// Returns the files of a run that only predicts as a checkpoint has them: whether its run froze
// parameters decides the file that they are in.
std::vector<ShardFile> PlacedAs(const Manifest& manifest, const std::vector<ShardFile>& files) {
  std::vector<ShardFile> placed;
  for (const ShardFile& file : files) {
    for (const ShardTensor& tensor : file.tensors) {
      const SavedFile* const saved = FileWith(manifest, file.layer, tensor.name);
      const std::string& name = saved == nullptr ? file.name : saved->name;
      const auto same = std::find_if(placed.begin(), placed.end(),
                                     [&](const ShardFile& other) { return other.name == name; });
      if (same != placed.end()) {
        same->tensors.push_back(tensor);
      } else {
        placed.push_back({.name = name, .layer = file.layer, .tensors = {tensor}});
      }
    }
  }
  return placed;
}

std::string FormOf(const std::optional<kernels::QuantizedMatrix>& quantized) {
  return quantized.has_value() ? quantized->ToString() : "not quantized";
}

// Checks whether the checkpoint has the tensors of the run, and no others of their kinds.
absl::Status CheckSameTensors(const Checkpoint& checkpoint, const std::vector<ShardFile>& files,
                              const PreparedRun& run) {
  const Manifest& manifest = checkpoint.manifest();
  const auto refuse = [&](const auto&... what) {
    return base::DataError(absl::StrCat(checkpoint.path(), ": ", what...),
                           absl::StatusCode::kFailedPrecondition);
  };
  const bool trains = run.plan().trains();
  if (trains && manifest.optimizer.kind != run.optimizer.kind) {
    return refuse("it was trained with ", TypeOf(manifest.optimizer).name,
                  ", which keeps other states than the optimizer of this run");
  }
  if (trains && manifest.optimizer.has_ema() != run.optimizer.has_ema()) {
    return refuse(
        run.optimizer.has_ema()
            ? "it has no averages of the parameters, which this run continues: train on without "
              "them, or begin another run with its parameters"
            : "it has averages of the parameters, which this run would lose: continue them, or "
              "begin another run with its parameters");
  }
  // Whether parameters are frozen decides the file that they are in.
  const auto refuse_frozen = [&](int layer) {
    return refuse("it is of another model: layer ", layer, " has other trained parameters in it");
  };
  for (const ShardFile& file : files) {
    const SavedFile* const saved = manifest.FindFile(file.name);
    if (saved == nullptr) {
      const bool has_layer = std::any_of(
          manifest.files.begin(), manifest.files.end(),
          [&](const SavedFile& other) { return LayerOfFile(other.name) == file.layer; });
      if (has_layer) return refuse_frozen(file.layer);
      return refuse("it is of another model: layer ", file.layer, " is not in it");
    }
    for (const ShardTensor& tensor : file.tensors) {
      const auto found = std::find_if(
          saved->tensors.begin(), saved->tensors.end(),
          [&](const SavedFile::Tensor& candidate) { return candidate.name == tensor.name; });
      if (found == saved->tensors.end()) {
        const std::string& parameter = run.profile.parameters[tensor.parameter].name;
        if (FileWith(manifest, file.layer, parameter) != nullptr) return refuse_frozen(file.layer);
        return refuse("it is of another model: \"", tensor.name, "\" is not in it");
      }
      if (found->shape != tensor.shape || found->quantized != tensor.quantized) {
        const bool has_shape = found->shape == tensor.shape;
        const auto form_of = [&](const auto& of) {
          return has_shape ? FormOf(of.quantized) : of.shape.ToString();
        };
        return refuse("it is of another model: \"", tensor.name, "\" ",
                      has_shape ? "is " : "has the shape ", form_of(*found), " in it, and ",
                      form_of(tensor), " in this one");
      }
    }
  }
  const auto saved_files =
      std::count_if(manifest.files.begin(), manifest.files.end(),
                    [&](const SavedFile& file) { return trains || !IsOptimizerFile(file.name); });
  if (saved_files == std::ssize(files)) return absl::OkStatus();
  return refuse("it is of another model: it has ", saved_files, " files of layers, not ",
                files.size());
}

// Fills in what the manifest says about the run itself.
void Describe(const PreparedRun& run, Manifest& manifest) {
  manifest.saved_at = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  manifest.optimizer = run.optimizer;
  manifest.device = Name(run.device.kind);
  manifest.precision = kernels::PrecisionName(run.device.precision);
  for (const partition::LayerCost& layer : run.profile.layers)
    manifest.layers.push_back(layer.name);
  manifest.input = run.model.input;
  manifest.output = run.profile.output;
  manifest.loss = run.profile.loss_spec.description;
  manifest.plan.plan = run.plan();
}

// The pieces of each tensor that a device has.
using PiecesOf = std::map<std::pair<ParameterId, int>, std::vector<TrainedPiece>>;

constexpr int64_t kFloatBytes = sizeof(float);

// Returns the bytes that the values of a tensor of a device take in a file.
int64_t FileBytesOf(const kernels::Tensor& tensor) {
  const bool is_stored = tensor.dtype == kernels::DType::kUint8;
  return is_stored ? tensor.bytes() : tensor.elements() * kFloatBytes;
}

// Turns bfloat16 into floats: `count` of them, which lie at the end of the floats' place. No float
// overwrites what is yet to be read.
void ExpandInPlace(std::byte* place, int64_t count) {
  constexpr int64_t kRoundedBytes = sizeof(uint16_t);
  const std::byte* const from = place + count * (kFloatBytes - kRoundedBytes);
  for (int64_t i = 0; i < count; ++i) {
    uint16_t rounded;
    std::memcpy(&rounded, from + i * kRoundedBytes, sizeof(rounded));
    const float value = kernels::FromBfloat16(rounded);
    std::memcpy(place + i * kFloatBytes, &value, sizeof(value));
  }
}

// Returns the pieces in the order of their parameters' shapes, which is that of files: a whole
// parameter's values are moved to their places, and a part of one becomes several pieces.
std::vector<HostPiece> InOrderOfShapes(absl::Span<const HostPiece> stored,
                                       const ParameterTable& parameters) {
  std::vector<HostPiece> ordered;
  std::vector<std::byte> space;
  for (const HostPiece& piece : stored) {
    const ModelParameter& parameter = parameters[piece.parameter];
    if (parameter.pieces() == 1) {
      ordered.push_back(piece);
      continue;
    }
    const auto begin = [&](int64_t element) { return static_cast<size_t>(element * kFloatBytes); };
    const int64_t count = std::ssize(piece.bytes) / kFloatBytes;
    const bool is_whole = count == parameter.shape.elements();
    if (is_whole) space.assign(piece.bytes.begin(), piece.bytes.end());
    ForEachRun(parameter.shape, *parameter.blocks, piece.first, count, [&](const ElementRun& run) {
      if (is_whole) {
        // The copy is this save's own.
        auto* const to = const_cast<std::byte*>(piece.bytes.data());
        std::memcpy(to + begin(run.whole), space.data() + begin(run.stored), begin(run.count));
        return;
      }
      ordered.push_back(
          {.parameter = piece.parameter,
           .state = piece.state,
           .first = run.whole,
           .bytes = piece.bytes.subspan(begin(run.stored - piece.first), begin(run.count))});
    });
    if (is_whole) ordered.push_back(piece);
  }
  return ordered;
}

// Hands a device its pieces of the tensors of a file.
class FileToDevice final : public FileReceiver {
 public:
  // All arguments outlive it.
  FileToDevice(const ShardFile& file, const ParameterTable& parameters, const PiecesOf& pieces,
               kernels::Uploader& uploader)
      : file_(file), parameters_(parameters), pieces_(pieces), uploader_(uploader) {}

  absl::Status Begin(const std::string& path, const SafetensorsHeader& header) override {
    for (const ShardTensor& tensor : file_.tensors) {
      ASSIGN_OR_RETURN(const SafetensorsEntry* const entry,
                       FindTensor(path, header, tensor.name, tensor.stored()));
      const auto found = pieces_.find({tensor.parameter, tensor.state});
      if (found == pieces_.end()) continue;
      for (const TrainedPiece& piece : found->second) AddPlaces(piece, entry->begin);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<absl::Span<std::byte>> Space() override {
    ASSIGN_OR_RETURN(space_, uploader_.Space());
    return space_;
  }

  void Take(int64_t begin, absl::Span<const std::byte> bytes) override {
    const int64_t end = begin + std::ssize(bytes);
    std::vector<kernels::UploadPart> parts;
    int64_t rounded_until = begin;
    for (const Place& place : places_) {
      const int64_t first = std::max(begin, place.begin);
      const int64_t last = std::min(end, place.begin + place.bytes);
      if (first >= last) continue;
      std::byte* const from = space_.data() + (first - begin);
      const int64_t share = place.is_rounded ? 2 : 1;
      if (place.is_rounded && first >= rounded_until) {  // a copy has the same values
        RoundInPlace(from, last - first);
        rounded_until = last;
      }
      parts.push_back({.to = place.to + (first - place.begin) / share,
                       .from = from,
                       .bytes = (last - first) / share});
    }
    uploader_.Add(std::ssize(bytes), parts);
  }

 private:
  // The destination of bytes of the file: unchanged, or as bfloat16.
  struct Place {
    int64_t begin, bytes;
    bool is_rounded;
    std::byte* to;
  };

  // Adds the places of a piece; `begin`: of the tensor in the file.
  void AddPlaces(const TrainedPiece& piece, int64_t begin) {
    const ModelParameter& parameter = parameters_[piece.parameter];
    auto* const to = static_cast<std::byte*>(piece.tensor.data);
    const bool is_rounded = piece.tensor.dtype == kernels::DType::kBfloat16;
    if (parameter.pieces() == 1) {
      places_.push_back({.begin = begin + piece.first * kFloatBytes,
                         .bytes = FileBytesOf(piece.tensor),
                         .is_rounded = is_rounded,
                         .to = to});
      return;
    }
    ForEachRun(
        parameter.shape, *parameter.blocks, piece.first, piece.tensor.elements(),
        [&](const ElementRun& run) {
          places_.push_back({.begin = begin + run.whole * kFloatBytes,
                             .bytes = run.count * kFloatBytes,
                             .is_rounded = is_rounded,
                             .to = to + (run.stored - piece.first) * SizeOf(piece.tensor.dtype)});
        });
  }

  // Rounds floats to as many bfloat16, one after the other from the same place on.
  static void RoundInPlace(std::byte* floats, int64_t bytes) {
    for (int64_t i = 0; i < bytes / kFloatBytes; ++i) {
      float value;
      std::memcpy(&value, floats + i * kFloatBytes, sizeof(value));
      const uint16_t rounded = kernels::ToBfloat16(value);
      std::memcpy(floats + i * int64_t{sizeof(rounded)}, &rounded, sizeof(rounded));
    }
  }

  const ShardFile& file_;
  const ParameterTable& parameters_;
  const PiecesOf& pieces_;
  kernels::Uploader& uploader_;
  absl::Span<std::byte> space_;
  std::vector<Place> places_;  // in the order of the file
};

}  // namespace

SavedState::SavedState(const PreparedRun& run, RankGroup& group, Executors executors,
                       base::SystemCalls& calls)
    : run_(run),
      group_(group),
      executors_(executors),
      calls_(calls),
      files_(FilesOf(run)),
      background_(calls) {}

int SavedState::OwnerOf(int layer) const {
  const StageId stage(run_.plan().stage_of(layer));
  return group_.mesh().device_of(run_.compiled.lowered->training.rank_of(stage),
                                 layer % run_.plan().replicas());
}

bool SavedState::Writes(int device, const TrainedPiece& piece) const {
  if (piece.is_copy) return false;
  const ModelParameter& parameter = run_.profile.parameters[piece.parameter];
  const int part = group_.mesh().part_of(device);
  if (part > 0 && parameter.pieces() == 1) return false;  // all parts have it
  const bool is_shard = run_.plan().replication.shards_optimizer && piece.state != kTrainedValue;
  return is_shard || OwnerOf(parameter.layer) + part == device;
}

absl::StatusOr<std::vector<HostPiece>> SavedState::Copy(int device, bool copies_frozen) {
  std::vector<TrainedPiece> pieces;
  int64_t bytes = 0;
  for (const TrainedPiece& piece : executors_[static_cast<size_t>(device)]->TrainedPieces()) {
    const bool is_frozen = run_.profile.parameters[piece.parameter].update.is_frozen();
    if (!Writes(device, piece) || (is_frozen && !copies_frozen)) continue;
    pieces.push_back(piece);
    bytes += FileBytesOf(piece.tensor);
  }
  DeviceCopy& copy = copies_[static_cast<size_t>(device)];
  if (copy.buffer == nullptr || copy.bytes < bytes) {
    ASSIGN_OR_RETURN(copy.buffer, AllocateLargeBuffer(bytes));
    copy.bytes = bytes;
  }
  std::vector<HostPiece> copied;
  std::vector<kernels::DownloadPiece> downloads;
  std::byte* to = copy.buffer.get();
  for (const TrainedPiece& piece : pieces) {
    // Rounded values come to the end of their place, from where they are expanded.
    const int64_t place_bytes = FileBytesOf(piece.tensor);
    downloads.push_back({.to = to + (place_bytes - piece.tensor.bytes()),
                         .from = piece.tensor.data,
                         .bytes = piece.tensor.bytes()});
    copied.push_back({.parameter = piece.parameter,
                      .state = piece.state,
                      .first = piece.first,
                      .bytes = {to, static_cast<size_t>(place_bytes)}});
    to += place_bytes;
  }
  RETURN_IF_ERROR(kernels::Download(group_.device(device), downloads));
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].tensor.dtype != kernels::DType::kBfloat16) continue;
    const int64_t place_bytes = FileBytesOf(pieces[i].tensor);
    ExpandInPlace(static_cast<std::byte*>(downloads[i].to) + downloads[i].bytes - place_bytes,
                  pieces[i].tensor.elements());
  }
  return InOrderOfShapes(copied, run_.profile.parameters);
}

absl::Status SavedState::Begin(SaveTask task) {
  ASSIGN_OR_RETURN(task.files, files_);
  const bool has_processes =
      group_.local_devices().size() < static_cast<size_t>(group_.mesh().num_devices());
  task.processes = has_processes ? group_.mesh().num_devices() : 1;
  task.process = has_processes ? group_.local_devices().front() : 0;
  for (const ShardFile& file : task.files) {
    task.owners.push_back(has_processes ? OwnerOf(file.layer) : 0);
  }
  Describe(run_, task.manifest);
  task.id = NewId();
  absl::Status made;
  if (task.process == 0) {
    made = base::MakeFolders(task.folder);
    if (made.ok()) made = BeginCheckpoint(calls_, task);
    if (made.ok() && frozen_.has_value()) {
      task.linked = LinkFrozenFiles(calls_, task, frozen_->path, frozen_->files);
    }
  }
  constexpr absl::string_view kLinked = " linked";
  ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                   group_.Gather(absl::StrCat(task.id, task.linked.empty() ? "" : kLinked)));
  absl::string_view id = ids.front();
  task.links_frozen = absl::ConsumeSuffix(&id, kLinked);
  task.id = std::string(id);
  copies_.resize(static_cast<size_t>(group_.mesh().num_devices()));
  std::vector<std::vector<HostPiece>> copied(copies_.size());
  const absl::Status status = group_.ForEachLocalDevice([&](int device) -> absl::Status {
    ASSIGN_OR_RETURN(copied[static_cast<size_t>(device)], Copy(device, !task.links_frozen));
    return absl::OkStatus();
  });
  RETURN_IF_ERROR(FirstError(made.ok() ? status : made));
  for (const std::vector<HostPiece>& own : copied) {
    task.pieces.insert(task.pieces.end(), own.begin(), own.end());
  }
  if (has_processes) RETURN_IF_ERROR(FirstError(CheckSeesFolder(task)));
  background_.Start(std::move(task));
  is_under_way_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> SavedState::Finish() {
  if (!is_under_way_) return absl::FailedPreconditionError("no checkpoint is being saved");
  is_under_way_ = false;
  // It waits for the parts of other processes, one of which may be gone.
  RETURN_IF_ERROR(
      group_.WaitUntil([this](base::Deadline until) { return background_.IsDone(until); }));
  const absl::StatusOr<std::string> path = background_.Finish();
  RETURN_IF_ERROR(FirstError(path.status()));
  if (const absl::StatusOr<Checkpoint> saved = Checkpoint::Open(*path); saved.ok()) {
    frozen_ = {*path, saved->manifest().files};
  }
  return path;
}

absl::Status SavedState::FirstError(const absl::Status& own) {
  // Errors here do not end the group, so they are passed on as texts.
  const int own_class = own.ok() ? 0 : static_cast<int>(base::ClassOf(own));
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   group_.Gather(absl::StrCat(own.raw_code(), " ", own_class, " ", own.message())));
  absl::Status first;
  for (const std::string& text : all) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
    int code = 0, error_class = 0;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &code) ||
        !absl::SimpleAtoi(parts[1], &error_class)) {
      return absl::FailedPreconditionError("the processes do not save and restore alike");
    }
    const absl::Status theirs =
        base::WithClass(static_cast<base::ErrorClass>(error_class),
                        absl::Status(static_cast<absl::StatusCode>(code), parts[2]));
    // Prefers the error of the process where it began.
    if (first.ok() || (absl::IsAborted(first) && !theirs.ok())) first = theirs;
  }
  return first;
}

absl::StatusOr<RestoredCheckpoint> SavedState::Restore(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> candidates, Candidates(path));
  RestoredCheckpoint restored;
  for (const std::string& candidate : candidates) {
    absl::StatusOr<Manifest> manifest = RestoreFrom(candidate);
    if (manifest.ok()) {
      restored.path = candidate;
      restored.manifest = *std::move(manifest);
      frozen_ = {restored.path, restored.manifest.files};
      return restored;
    }
    RETURN_IF_ERROR(group_.status());
    // Another checkpoint of the same run would not help.
    if (absl::IsFailedPrecondition(manifest.status())) return manifest.status();
    restored.passed_over.push_back(manifest.status());
  }
  if (candidates.size() == 1) return restored.passed_over.front();
  return absl::DataLossError(
      absl::StrCat("none of the ", candidates.size(), " checkpoints in ", path,
                   " can be read: ", restored.passed_over.front().message()));
}

absl::StatusOr<std::vector<std::string>> SavedState::Candidates(const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> own = CandidatesIn(path);
  RETURN_IF_ERROR(FirstError(own.status()));
  const std::string text = absl::StrJoin(*own, "\n");
  ASSIGN_OR_RETURN(const std::vector<std::string> all, group_.Gather(text));
  for (const std::string& theirs : all) {
    if (theirs == text) continue;
    return base::DataError(absl::StrCat("the processes do not see the same checkpoints in ", path),
                           absl::StatusCode::kFailedPrecondition);
  }
  return own;
}

absl::StatusOr<Manifest> SavedState::RestoreFrom(const std::string& path) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  absl::Status status = checkpoint.status();
  if (status.ok()) status = files_.status();
  std::vector<ShardFile> files;
  if (status.ok()) {
    files = run_.plan().trains() ? *files_ : PlacedAs(checkpoint->manifest(), *files_);
    status = CheckSameTensors(*checkpoint, files, run_);
  }
  if (status.ok()) {
    status = group_.ForEachLocalDevice(
        [&](int device) { return RestoreTo(device, *checkpoint, files); });
  }
  RETURN_IF_ERROR(FirstError(status));
  return checkpoint->manifest();
}

absl::Status SavedState::RestoreTo(int device, const Checkpoint& checkpoint,
                                   const std::vector<ShardFile>& all_files) {
  const Executor& executor = *executors_[static_cast<size_t>(device)];
  PiecesOf pieces;
  for (const TrainedPiece& piece : executor.TrainedPieces()) {
    pieces[{piece.parameter, piece.state}].push_back(piece);
  }
  std::vector<const ShardFile*> files;
  int64_t bytes = 0;
  for (const ShardFile& file : all_files) {
    const bool is_needed =
        std::any_of(file.tensors.begin(), file.tensors.end(), [&](const ShardTensor& tensor) {
          return pieces.contains({tensor.parameter, tensor.state});
        });
    if (!is_needed) continue;
    files.push_back(&file);
    bytes += checkpoint.manifest().FindFile(file.name)->bytes;
  }
  kernels::Device& to = group_.device(device);
  RETURN_IF_ERROR(kernels::Upload(
      to, bytes, static_cast<int>(files.size()), [&](int source, kernels::Uploader& uploader) {
        const ShardFile& file = *files[static_cast<size_t>(source)];
        FileToDevice receiver(file, run_.profile.parameters, pieces, uploader);
        return checkpoint.LoadTo(file.name, receiver);
      }));
  for (const std::unique_ptr<Stage>& stage : executor.stages()) {
    RETURN_IF_ERROR(stage->RoundParameters());
  }
  return to.stream().Finish();
}

}  // namespace stagecoach::engine
