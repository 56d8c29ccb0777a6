#include "base/system/file.h"
#include "engine/data/formats/format.h"
#include "engine/data/tokens/tokens.h"

namespace stagecoach::engine {

const DataFormat kTokenFormat = {
    .name = "text",
    .form =
        "a .txt file, tokens in .bin or .npy files or in a directory of them, any text with a "
        "tokenizer",
    .matches =
        [](const DataSource& source) {
          return HoldsTokens(source.spec, !source.tokens.tokenizer.empty());
        },
    .load =
        [](const DataSource& source, Sets sets) {
          TokenOptions tokens = source.tokens;
          tokens.sets = sets;
          tokens.test_fraction = source.test_fraction.value_or(kDefaultTestFraction);
          return LoadTokens(source.spec, tokens);
        },
    .load_samples =
        [](const DataSource& source, const DataEncoding& encoding, int64_t /*classes*/) {
          return LoadTokenSamples(source.spec, source.tokens, encoding);
        },
    .takes_files = true,
    .test_fraction = kDefaultTestFraction,
};

}  // namespace stagecoach::engine
