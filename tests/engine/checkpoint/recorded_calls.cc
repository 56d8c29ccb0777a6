#include "tests/engine/checkpoint/recorded_calls.h"

#include <fcntl.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/check.h"

namespace stagecoach::engine {
namespace {

using Unsynced = RecordedCalls::Unsynced;

// A file or folder of a disk, as programs see it, and the part that would survive a crash.
struct Node {
  bool is_folder = false;
  std::string bytes, synced_bytes;
  struct Write {
    size_t offset;
    std::string bytes;
  };
  std::vector<Write> unsynced_writes;

  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  Entries entries, synced_entries;
  std::vector<std::function<void(Entries&)>> unsynced_changes;

  void Change(std::function<void(Entries&)> change) {
    change(entries);
    unsynced_changes.push_back(std::move(change));
  }
};

void Apply(const Node::Write& write, std::string& bytes) {
  if (bytes.size() < write.offset + write.bytes.size()) {
    bytes.resize(write.offset + write.bytes.size());
  }
  bytes.replace(write.offset, write.bytes.size(), write.bytes);
}

std::shared_ptr<Node> Load(const std::filesystem::path& path) {
  auto node = std::make_shared<Node>();
  node->is_folder = std::filesystem::is_directory(path);
  if (!node->is_folder) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    node->bytes = node->synced_bytes = text.str();
    return node;
  }
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    node->entries[entry.path().filename().string()] = Load(entry.path());
  }
  node->synced_entries = node->entries;
  return node;
}

// Produces what a crash leaves of a node.
class Crash {
 public:
  Crash(Unsynced unsynced, uint64_t seed) : unsynced_(unsynced), random_(seed) {}

  void Make(const Node& node, const std::filesystem::path& path) {
    if (!node.is_folder) {
      std::string bytes = node.synced_bytes;
      for (const Node::Write& write : node.unsynced_writes) {
        const size_t part = PartOf(write.bytes.size());
        if (part > 0) Apply({write.offset, write.bytes.substr(0, part)}, bytes);
      }
      std::ofstream(path, std::ios::binary) << bytes;
      return;
    }
    std::filesystem::create_directory(path);
    Node::Entries entries = node.synced_entries;
    for (const auto& change : node.unsynced_changes) {
      const bool happens = unsynced_ == Unsynced::kAll || unsynced_ == Unsynced::kNamesOnly ||
                           (unsynced_ == Unsynced::kHalf && random_() % 2 == 1);
      if (happens) change(entries);
    }
    for (const auto& [name, entry] : entries) Make(*entry, path / name);
  }

 private:
  size_t PartOf(size_t bytes) {
    if (unsynced_ == Unsynced::kAll) return bytes;
    return unsynced_ == Unsynced::kHalf ? random_() % (bytes + 1) : 0;
  }

  const Unsynced unsynced_;
  std::mt19937_64 random_;
};

std::pair<std::string, std::string> SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  return {path.substr(0, slash), path.substr(slash + 1)};
}

void Move(Node::Entries& entries, const std::string& from, const std::string& to) {
  const auto found = entries.find(from);
  if (found == entries.end()) return;
  std::shared_ptr<Node> node = found->second;
  entries.erase(found);
  entries[to] = std::move(node);
}

}  // namespace

int RecordedCalls::MakeFolder(const char* path) {
  const int result = SystemCalls::MakeFolder(path);
  if (result == 0) events_.push_back({.kind = Event::Kind::kMakeFolder, .path = path});
  return result;
}

int RecordedCalls::Open(const char* path, int flags) {
  const bool is_new = !std::filesystem::exists(path);
  const int file = SystemCalls::Open(path, flags);
  if (file < 0) return file;
  paths_[file] = path;
  events_.push_back({.kind = is_new ? Event::Kind::kCreate : Event::Kind::kNothing, .path = path});
  return file;
}

ssize_t RecordedCalls::WriteAt(int file, const void* data, size_t bytes, off_t offset) {
  const ssize_t count = SystemCalls::WriteAt(file, data, bytes, offset);
  if (count < 0) return count;
  events_.push_back(
      {.kind = Event::Kind::kWrite,
       .path = paths_[file],
       .offset = offset,
       .bytes = std::string(static_cast<const char*>(data), static_cast<size_t>(count))});
  return count;
}

int RecordedCalls::Sync(int file) {
  const bool is_folder = std::filesystem::is_directory(paths_[file]);
  events_.push_back({.kind = is_folder ? Event::Kind::kSyncFolder : Event::Kind::kSyncFile,
                     .path = paths_[file]});
  return 0;  // the disk of the test's machine need not wait
}

int RecordedCalls::Close(int file) {
  paths_.erase(file);
  events_.push_back({.kind = Event::Kind::kNothing});
  return SystemCalls::Close(file);
}

int RecordedCalls::Rename(const char* from, const char* to) {
  const int result = SystemCalls::Rename(from, to);
  if (result == 0) events_.push_back({.kind = Event::Kind::kRename, .path = from, .other = to});
  return result;
}

int RecordedCalls::Exchange(const char* one, const char* other) {
  const int result = SystemCalls::Exchange(one, other);
  if (result == 0) {
    events_.push_back({.kind = Event::Kind::kExchange, .path = one, .other = other});
  }
  return result;
}

int RecordedCalls::RemoveFile(const char* path) {
  const int result = SystemCalls::RemoveFile(path);
  if (result == 0) events_.push_back({.kind = Event::Kind::kRemove, .path = path});
  return result;
}

int RecordedCalls::RemoveFolder(const char* path) {
  const int result = SystemCalls::RemoveFolder(path);
  if (result == 0) events_.push_back({.kind = Event::Kind::kRemove, .path = path});
  return result;
}

void RecordedCalls::MakeCrashed(int64_t calls, Unsynced unsynced, uint64_t seed,
                                const std::string& before, const std::string& to) const {
  const std::shared_ptr<Node> root = Load(before);
  const auto find = [&](const std::string& path) {
    STAGECOACH_CHECK(path.substr(0, root_.size()) == root_, path);
    std::shared_ptr<Node> node = root;
    for (size_t at = root_.size() + 1; at < path.size();) {
      const size_t end = std::min(path.find('/', at), path.size());
      node = node->entries.at(path.substr(at, end - at));
      at = end + 1;
    }
    return node;
  };
  for (int64_t i = 0; i < calls; ++i) {
    const Event& event = events_[static_cast<size_t>(i)];
    const auto [folder, name] = SplitPath(event.path);
    const std::string other = SplitPath(event.other).second;
    switch (event.kind) {
      case Event::Kind::kMakeFolder:
      case Event::Kind::kCreate: {
        auto node = std::make_shared<Node>();
        node->is_folder = event.kind == Event::Kind::kMakeFolder;
        find(folder)->Change(
            [node, entry = name](Node::Entries& entries) { entries[entry] = node; });
        break;
      }
      case Event::Kind::kWrite: {
        const std::shared_ptr<Node> node = find(event.path);
        node->unsynced_writes.push_back({static_cast<size_t>(event.offset), event.bytes});
        Apply(node->unsynced_writes.back(), node->bytes);
        break;
      }
      case Event::Kind::kSyncFile: {
        const std::shared_ptr<Node> node = find(event.path);
        node->synced_bytes = node->bytes;
        node->unsynced_writes.clear();
        break;
      }
      case Event::Kind::kSyncFolder: {
        const std::shared_ptr<Node> node = find(event.path);
        node->synced_entries = node->entries;
        node->unsynced_changes.clear();
        break;
      }
      case Event::Kind::kRename:
        find(folder)->Change(
            [from = name, other](Node::Entries& entries) { Move(entries, from, other); });
        break;
      case Event::Kind::kExchange:
        find(folder)->Change([one = name, other](Node::Entries& entries) {
          if (entries.contains(one) && entries.contains(other)) {
            std::swap(entries[one], entries[other]);
          }
        });
        break;
      case Event::Kind::kRemove:
        find(folder)->Change([entry = name](Node::Entries& entries) { entries.erase(entry); });
        break;
      case Event::Kind::kNothing:
        break;
    }
  }
  Crash(unsynced, seed).Make(*root, to);
}

}  // namespace stagecoach::engine
