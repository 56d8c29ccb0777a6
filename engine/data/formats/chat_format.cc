#include "engine/data/chat/chat_dataset.h"
#include "engine/data/formats/format.h"

namespace stagecoach::engine {

const DataFormat kChatFormat = {
    .name = "chats",
    .form = "a .jsonl file of conversations, prompts with completions, or texts",
    .matches = [](const DataSource& source) { return HoldsChats(source.spec); },
    .load =
        [](const DataSource& source, Sets sets) {
          TokenOptions tokens = source.tokens;
          tokens.sets = sets;
          tokens.test_fraction = source.test_fraction.value_or(kDefaultTestFraction);
          return LoadChats(source.spec, tokens, source.on_notice);
        },
    .load_samples =
        [](const DataSource& source, const DataEncoding& encoding, int64_t /*classes*/) {
          return LoadChatSamples(source.spec, source.tokens, encoding, source.on_notice);
        },
    .takes_files = true,
    .test_fraction = kDefaultTestFraction,
};

}  // namespace stagecoach::engine
