#include "engine/data/chat/chat_dataset.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "engine/data/chat/chat_file.h"
#include "engine/data/chat/chat_template.h"
#include "engine/data/chat/packing.h"
#include "engine/data/data_files.h"
#include "engine/data/file_name.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "kernels/loss_terms.h"

namespace stagecoach::engine {

namespace {

using Notice = std::function<void(const std::string&)>;

// Removes what follows the last token that a model learns: nothing is predicted from it.
void Trim(ChatTokens& example) {
  while (!example.ids.empty() && example.trained.back() == 0) {
    example.ids.pop_back();
    example.trained.pop_back();
  }
}

// Reads the examples of a file, or of several.
class ChatReader {
 public:
  ChatReader(std::string path, const TokenOptions& options, const Tokenizer& tokenizer)
      : path_(std::move(path)), options_(options), tokenizer_(tokenizer) {}

  absl::StatusOr<std::vector<ChatTokens>> Read(const Notice& on_notice) {
    ASSIGN_OR_RETURN(const std::vector<std::string> files, DataFilesOf(path_));
    for (const std::string& file : files) {
      RETURN_IF_ERROR(ReadChatFile(file, [&](int64_t line, const ChatExample& example) {
        RETURN_IF_ERROR(CheckKind(files.front(), example));
        return Add(line, example);
      }));
    }
    const auto tell = [&](const std::string& why, const char* advice) {
      const int64_t count = std::count_if(
          lines_.begin(), lines_.end(), [&](const ChatLine& line) { return line.left_out == why; });
      if (count == 0 || !on_notice) return;
      on_notice(absl::StrCat(path_, ": ", base::FormatCount(count), " of ",
                             base::FormatCount(std::ssize(lines_)), " examples ",
                             count == 1 ? "is" : "are", " left out: ", why, advice));
    };
    tell(TooLong(), "; --context sets it");
    tell(kWithoutAnswers, "");
    return std::move(examples_);
  }
  std::vector<ChatLine> TakeLines() { return std::move(lines_); }

 private:
  static constexpr char kWithoutAnswers[] = "no token to train on";
  std::string TooLong() const {
    return absl::StrCat("longer than the context of ", options_.context, " tokens");
  }

  // The lines of a file are of one kind (ReadChatFile), and so are those of several.
  absl::Status CheckKind(const std::string& first_file, const ChatExample& example) {
    static constexpr const char* kKinds[] = {"messages", "a prompt and a completion", "a text"};
    static_assert(std::size(kKinds) == std::variant_size_v<ChatExample>);
    if (!kind_.has_value()) kind_ = example.index();
    if (*kind_ == example.index()) return absl::OkStatus();
    return base::DataError(absl::StrCat("the line has ", kKinds[example.index()], ", and those of ",
                                        first_file, " have ", kKinds[*kind_],
                                        ": examples of several files are of one kind"));
  }

  absl::Status Add(int64_t line, const ChatExample& example) {
    RETURN_IF_ERROR(ChooseTemplate(example));
    ASSIGN_OR_RETURN(
        ChatTokens tokens,
        TokenizeChat(tokenizer_, template_.has_value() ? &*template_ : nullptr, example,
                     options_.trains_on_all ? TrainOn::kAll : TrainOn::kAnswers));
    Trim(tokens);
    ChatLine& own = lines_.emplace_back(ChatLine{.line = line});
    if (LearnedTokens(tokens) == 0) {
      own.left_out = kWithoutAnswers;
    } else if (std::ssize(tokens.ids) > options_.context + 1) {
      own.left_out = TooLong();
    } else {
      examples_.push_back(std::move(tokens));
    }
    return absl::OkStatus();
  }

  // Prompts are not put into a template that is not asked for: they may have it already.
  absl::Status ChooseTemplate(const ChatExample& example) {
    const bool is_needed =
        std::holds_alternative<Conversation>(example) || !options_.chat_template.empty();
    if (template_.has_value() || !is_needed) return absl::OkStatus();
    ASSIGN_OR_RETURN(template_, ChatTemplateFor(options_.chat_template, options_.tokenizer));
    return absl::OkStatus();
  }

  const std::string path_;
  const TokenOptions& options_;
  const Tokenizer& tokenizer_;
  std::optional<size_t> kind_;  // of all examples
  std::optional<ChatTemplate> template_;
  std::vector<ChatTokens> examples_;
  std::vector<ChatLine> lines_;
};

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               const TokenOptions& options) {
  if (options.tokenizer.empty() || options.tokenizer == kBytesTokenizer) {
    return base::DataError(
        absl::StrCat(path,
                     ": its examples become tokens by the model's tokenizer: name its file "
                     "with --tokenizer, or a model that has one with --init"));
  }
  return Tokenizer::Load(options.tokenizer);
}

// Returns the context that the longest example needs, rounded up, and at least `least`, but not
// above the limit.
int64_t ContextOf(const std::vector<ChatTokens>& examples, int64_t least, int64_t limit) {
  int64_t longest = least;
  for (const ChatTokens& example : examples) {
    longest = std::max<int64_t>(longest, std::ssize(example.ids) - 1);
  }
  return std::min(limit, (longest + kContextGranule - 1) / kContextGranule * kContextGranule);
}

absl::Status CheckExample(const ChatTokens& example, size_t index, int64_t context,
                          int64_t vocabulary) {
  const int64_t learned = LearnedTokens(example);
  if (std::ssize(example.ids) > context + 1 || learned == 0) {
    return base::DataError(absl::StrCat("example ", index, " has ", example.ids.size(), " tokens, ",
                                        learned, " of them to learn; expected at most ",
                                        context + 1, " and at least one to learn"));
  }
  for (const int32_t id : example.ids) {
    if (id >= 0 && id < vocabulary) continue;
    return base::DataError(
        absl::StrCat("example ", index, " has the token ", id, ", expected 0 to ", vocabulary - 1));
  }
  return absl::OkStatus();
}

// Returns the examples of each row.
std::vector<std::vector<int64_t>> RowsOf(const std::vector<ChatTokens>& examples, int64_t context,
                                         ExamplesInRow in_row) {
  if (in_row == ExamplesInRow::kPacked) {
    std::vector<int64_t> lengths;
    for (const ChatTokens& example : examples) lengths.push_back(std::ssize(example.ids) - 1);
    return PackIntoRows(lengths, context);
  }
  std::vector<std::vector<int64_t>> rows;
  for (int64_t i = 0; i < std::ssize(examples); ++i) rows.push_back({i});
  return rows;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplateFor(const std::string& named,
                                             const std::string& tokenizer) {
  if (named.empty()) {
    const std::filesystem::path folder = std::filesystem::path(tokenizer).parent_path();
    return RecognizeChatTemplate(folder.empty() ? "." : folder.string());
  }
  return absl::EndsWith(named, ".toml") ? LoadChatTemplate(named) : FindChatTemplate(named);
}

int64_t LearnedTokens(const ChatTokens& example) {
  if (example.trained.empty()) return 0;
  return std::count(example.trained.begin() + 1, example.trained.end(), 1);
}

bool HoldsChats(const std::string& spec) { return HasEnding(FirstDataFile(spec), ".jsonl"); }

absl::StatusOr<std::shared_ptr<const ChatDataset>> ChatDataset::Create(
    const std::vector<ChatTokens>& examples, int64_t context, int64_t vocabulary,
    ExamplesInRow in_row) {
  if (examples.empty()) return base::DataError("no example, expected at least one");
  if (context < 1) {
    return base::DataError(absl::StrCat("a context of ", context, " tokens, expected at least 1"));
  }
  if (vocabulary < 2 || vocabulary > kMaxVocabulary) {
    return base::DataError(
        absl::StrCat("a vocabulary of ", vocabulary, ", expected one of 2 to ", kMaxVocabulary));
  }
  for (size_t i = 0; i < examples.size(); ++i) {
    RETURN_IF_ERROR(CheckExample(examples[i], i, context, vocabulary));
  }
  SampleSpec spec = TokenSpec(context, vocabulary);
  spec.has_documents = in_row == ExamplesInRow::kPacked;
  const std::shared_ptr<ChatDataset> data(new ChatDataset(std::move(spec)));
  data->begins_.push_back(0);
  data->row_begins_.push_back(0);
  for (const std::vector<int64_t>& row : RowsOf(examples, context, in_row)) {
    int64_t learned = 0;
    for (const int64_t index : row) {
      const ChatTokens& example = examples[static_cast<size_t>(index)];
      data->ids_.insert(data->ids_.end(), example.ids.begin(), example.ids.end());
      data->is_trained_.insert(data->is_trained_.end(), example.trained.begin(),
                               example.trained.end());
      data->begins_.push_back(data->ids_.size());
      learned += LearnedTokens(example);
    }
    data->row_begins_.push_back(data->begins_.size() - 1);
    data->learned_.push_back(static_cast<int32_t>(learned));
  }
  return data;
}

ChatDataset::Example ChatDataset::ExampleAt(size_t index) const {
  const size_t begin = begins_[index], count = begins_[index + 1] - begin;
  return {absl::MakeConstSpan(ids_).subspan(begin, count),
          absl::MakeConstSpan(is_trained_).subspan(begin, count)};
}

int64_t ChatDataset::PositionsOf(const Example& example) const {
  const auto ids = std::ssize(example.ids);
  return spec().has_documents ? ids - 1 : std::min(ids, features());
}

int64_t ChatDataset::ForEachExample(
    int64_t row, absl::FunctionRef<void(const Example&, int64_t)> function) const {
  int64_t position = 0;
  const size_t end = row_begins_[static_cast<size_t>(row) + 1];
  for (size_t i = row_begins_[static_cast<size_t>(row)]; i < end; ++i) {
    const Example example = ExampleAt(i);
    function(example, position);
    position += PositionsOf(example);
  }
  return position;
}

double ChatDataset::fill() const {
  int64_t positions = 0;
  for (size_t i = 0; i + 1 < begins_.size(); ++i) positions += PositionsOf(ExampleAt(i));
  return static_cast<double>(positions) / static_cast<double>(rows() * features());
}

void ChatDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  auto* const ids = reinterpret_cast<int32_t*>(out);
  const int64_t end = ForEachExample(row, [&](const Example& example, int64_t begin) {
    std::copy_n(example.ids.data(), PositionsOf(example), ids + begin);
  });
  std::fill(ids + end, ids + features(), 0);
}

void ChatDataset::ReadTarget(int64_t row, std::byte* out) const {
  auto* const labels = reinterpret_cast<int32_t*>(out);
  std::fill_n(labels, features(), kernels::kNoLabel);
  ForEachExample(row, [&](const Example& example, int64_t begin) {
    for (size_t i = 1; i < example.ids.size(); ++i) {
      if (example.is_trained[i] != 0) labels[begin + static_cast<int64_t>(i) - 1] = example.ids[i];
    }
  });
}

void ChatDataset::ReadDocuments(int64_t row, absl::Span<int32_t> out) const {
  const int64_t end = ForEachExample(row, [&](const Example& example, int64_t begin) {
    std::fill_n(out.begin() + begin, PositionsOf(example), static_cast<int32_t>(begin));
  });
  std::fill(out.begin() + end, out.end(), static_cast<int32_t>(end));
}

absl::StatusOr<TrainTest> LoadChats(const std::string& path, const TokenOptions& options,
                                    const Notice& on_notice) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, LoadTokenizer(path, options));
  ASSIGN_OR_RETURN(std::vector<ChatTokens> examples,
                   ChatReader(path, options, *tokenizer).Read(on_notice));
  TrainTest data;
  data.encoding = {
      .vocabulary = options.vocabulary == 0 ? tokenizer->vocabulary() : options.vocabulary,
      .tokenizer = tokenizer->hash()};
  const bool packs = options.packs_examples;
  const int64_t context =
      options.context_is_limit
          ? ContextOf(examples, packs ? kLeastPackedContext : 1, options.context)
          : options.context;
  const auto create = [&](const std::vector<ChatTokens>& part, const char* set) {
    auto created = ChatDataset::Create(part, context, data.encoding.vocabulary,
                                       packs ? ExamplesInRow::kPacked : ExamplesInRow::kOne);
    const absl::Status status =
        base::Annotate(created.status(), absl::StrCat(path, ": ", set, " set"));
    if (status.ok() && packs && on_notice) {
      on_notice(absl::StrFormat(
          "%s: the %s set's %s examples are packed into samples of %s tokens: %s, %.1f %% full",
          path, set, base::FormatCount(std::ssize(part)), base::FormatCount(context),
          base::FormatCount((*created)->rows()), 100.0 * (*created)->fill()));
    }
    return status.ok() ? std::move(created) : status;
  };
  if (options.sets == Sets::kBoth && !examples.empty()) {
    const double share = options.test_fraction * static_cast<double>(examples.size());
    const auto tested = std::max<int64_t>(1, static_cast<int64_t>(share));
    const std::vector<ChatTokens> test(examples.end() - tested, examples.end());
    examples.resize(examples.size() - static_cast<size_t>(tested));
    ASSIGN_OR_RETURN(data.test, create(test, "test"));
  }
  ASSIGN_OR_RETURN(data.train, create(examples, "training"));
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadChatSamples(const std::string& path,
                                                               const TokenOptions& options,
                                                               const DataEncoding& encoding,
                                                               const Notice& on_notice) {
  ASSIGN_OR_RETURN(ChatSamples samples, LoadChatLines(path, options, encoding, on_notice));
  return std::move(samples.data);
}

absl::StatusOr<ChatSamples> LoadChatLines(const std::string& path, const TokenOptions& options,
                                          const DataEncoding& encoding, const Notice& on_notice) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer, LoadTokenizer(path, options));
  if (encoding.tokenizer != tokenizer->hash()) {
    return base::DataError(absl::StrCat("the model was not trained on tokens of ",
                                        options.tokenizer, ", the tokenizer ", tokenizer->hash(),
                                        ", by which the examples of ", path, " become tokens"),
                           absl::StatusCode::kFailedPrecondition);
  }
  ChatReader reader(path, options, *tokenizer);
  ASSIGN_OR_RETURN(const std::vector<ChatTokens> examples, reader.Read(on_notice));
  std::vector<ChatLine> lines = reader.TakeLines();
  if (examples.empty()) {
    return base::DataError(
        absl::StrCat(path, ": every example is left out, the first one: ", lines.front().left_out));
  }
  auto created = ChatDataset::Create(examples, options.context, encoding.vocabulary);
  RETURN_IF_ERROR(base::Annotate(created.status(), path));
  return ChatSamples{*std::move(created), std::move(lines)};
}

}  // namespace stagecoach::engine
