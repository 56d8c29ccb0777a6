#!/usr/bin/env python3
"""The lists of docs/development.md, "Extending Stagecoach", are complete: additions that follow them compile.

    tests/source/extending_test.py [--compiler c++] [--copy DIR] [--build DIR]

Makes a copy of the sources and adds a layer, a data format and a preset model to it. Each addition makes the new files
that its section of the page lists, and changes the files that are listed there: no others, and all of them. Then each
of these files is compiled, without code being generated.

With --copy, the copy stays in that folder; a folder that exists is taken as it is. With --build, the copy is built in
that folder, and the additions are tested, trained and predicted with.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ["CMakeLists.txt", "CHANGELOG.md", "LICENSE", "README.md", "base", "bench", "cmake", "docs", "engine",
         "examples", "kernels", "partition", "schedule", "tests", "tools"]
FLAGS = ["-std=c++20", "-fsyntax-only", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers"]
# An addition names the section that it follows and <name>, the text of each new file, and what goes where in each
# changed one: (path, the line that it follows, by its beginning, or precedes with "^", new lines).
SCALE = {
    "section": "Adding a layer",
    "name": "scale",
    "new": {
        "engine/nn/layers/scale.h": """\
#ifndef STAGECOACH_ENGINE_NN_LAYERS_SCALE_H_
#define STAGECOACH_ENGINE_NN_LAYERS_SCALE_H_

#include "engine/nn/layer.h"
#include "engine/nn/parsing/layer_type.h"

namespace stagecoach::engine {

// y = 2^doublings x.
LayerFactory Scale(int doublings);

extern const LayerType kScaleType;

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_SCALE_H_
""",
        "engine/nn/layers/scale.cc": """\
#include "engine/nn/layers/scale.h"

#include "base/status_macros.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class ScaleLayer final : public Layer {
 public:
  explicit ScaleLayer(int doublings) : doublings_(doublings) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    ops_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "scale";
    spec.output = context.input;
    spec.memory.input_last_use = LastUse::kForward;
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return Double(args.stream, args.x, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : Double(args.stream, args.dy, args.dx);
  }

 private:
  absl::Status Double(kernels::Stream& stream, const kernels::Tensor& x, const kernels::Tensor& y) {
    RETURN_IF_ERROR(ops_->Add(stream, x, x, y));
    for (int i = 1; i < doublings_; ++i) RETURN_IF_ERROR(ops_->Add(stream, y, y, y));
    return absl::OkStatus();
  }

  const int doublings_;
  kernels::ElementwiseOps* ops_ = nullptr;
};

}  // namespace

LayerFactory Scale(int doublings) { return LayerOf<ScaleLayer>(doublings); }

const LayerType kScaleType = {
    .name = "scale",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(const int64_t doublings,
                       entry.reader.OptionalInt64("doublings", 1, {.min = 1, .max = 8}));
      layer.factories = {Scale(static_cast<int>(doublings))};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
""",
    },
    "lines": [
        ("engine/nn/layers/layers.h", '#include "engine/nn/layers/linear.h"', '#include "engine/nn/layers/scale.h"\n'),
        ("engine/nn/layers/layers.h", "    &kFlattenType,", '    // { type = "scale", doublings = 1 }\n    &kScaleType,\n'),
        ("engine/CMakeLists.txt", "    nn/layers/linear.h", "    nn/layers/scale.h\n"),
        ("engine/CMakeLists.txt", "    nn/layers/linear.cc", "    nn/layers/scale.cc\n"),
        ("tests/engine/models/networks.cc", '      {"SwiGlu", Shape{6}', '      {"Scale", five, {Linear(4), Scale(2), Linear(3)}},\n'),
    ],
}
TSV = {
    "section": "Adding a data format",
    "name": "tsv",
    "new": {
        "engine/data/formats/tsv.cc": """\
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_class.h"
#include "base/system/file.h"
#include "base/status_macros.h"
#include "engine/data/formats/format.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kMaxTsvBytes = int64_t{1} << 28;
constexpr int kTestEvery = 5;

struct TsvRows {
  int64_t features = 0;
  std::vector<float> values;
  std::vector<int32_t> labels;
};

// Reads rows of numbers, the last of which is the number of a class. Every fifth row is a test row.
absl::StatusOr<TsvRows> ReadTsv(const std::string& path, bool is_test) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxTsvBytes));
  TsvRows rows;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\\n', absl::SkipEmpty())) {
    if ((++number % kTestEvery == 0) != is_test) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\\t');
    rows.features = static_cast<int64_t>(fields.size()) - 1;
    for (int64_t i = 0; i < rows.features; ++i) {
      if (!absl::SimpleAtof(fields[static_cast<size_t>(i)], &rows.values.emplace_back())) {
        return base::DataError(absl::StrCat(path, ":", number, ": expected a number"));
      }
    }
    if (!absl::SimpleAtoi(fields.back(), &rows.labels.emplace_back())) {
      return base::DataError(absl::StrCat(path, ":", number, ": expected the number of a class"));
    }
  }
  if (rows.labels.empty()) return base::DataError(absl::StrCat(path, ": has too few rows"));
  return rows;
}

absl::StatusOr<std::shared_ptr<const Dataset>> TsvSet(TsvRows rows, int64_t classes) {
  return TableDataset::Create({rows.features}, classes, std::move(rows.values),
                              std::move(rows.labels));
}

}  // namespace

const DataFormat kTsvFormat = {
    .name = "tsv",
    .form = "a .tsv file",
    .matches = [](const DataSource& source) { return absl::EndsWith(source.spec, ".tsv"); },
    .load = [](const DataSource& source, Sets sets) -> absl::StatusOr<TrainTest> {
      ASSIGN_OR_RETURN(TsvRows rows, ReadTsv(source.spec, false));
      const int64_t classes = 1 + *std::max_element(rows.labels.begin(), rows.labels.end());
      TrainTest data;
      ASSIGN_OR_RETURN(data.train, TsvSet(std::move(rows), classes));
      if (sets == Sets::kTraining) return data;
      ASSIGN_OR_RETURN(TsvRows test, ReadTsv(source.spec, true));
      ASSIGN_OR_RETURN(data.test, TsvSet(std::move(test), classes));
      return data;
    },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t classes) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(CheckEncodes(encoding.mean.empty(), "tables of tabs", "it standardizes"));
      ASSIGN_OR_RETURN(TsvRows rows, ReadTsv(source.spec, true));
      return TsvSet(std::move(rows), classes);
    },
};

}  // namespace stagecoach::engine
""",
        "tests/engine/data/formats/tsv_test.cc": """\
#include "engine/data/formats/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

TEST(TsvFormat, HasEveryFifthRowForTests) {
  const std::string rows = "1\\t2\\t0\\n3\\t4\\t1\\n5\\t6\\t0\\n7\\t8\\t1\\n9\\t10\\t0\\n";
  const auto data = LoadData({.spec = WriteTestFile(TestDirectory(), "a.tsv", rows)});
  ASSERT_OK(data);
  EXPECT_EQ(data->train->rows(), 4);
  EXPECT_EQ(FeaturesOf(*data->test, 0), (std::vector<float>{9, 10}));
}

TEST(TsvFormat, IsListedAmongTheForms) {
  EXPECT_THAT(LoadData({}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a .tsv file")));
}

}  // namespace
}  // namespace stagecoach::engine
""",
    },
    "lines": [
        ("engine/data/formats/format.h", "extern const DataFormat kCsvFormat,", "extern const DataFormat kTsvFormat;\n"),
        ("engine/data/formats/format.h", "^    &kSyntheticFormat,", "    &kTsvFormat,\n"),
        ("engine/CMakeLists.txt", "    data/formats/token_format.cc", "    data/formats/tsv.cc\n"),
        ("tests/engine/data/CMakeLists.txt", "    formats/synthetic_test.cc", "    formats/tsv_test.cc\n"),
    ],
}
RESNET34 = {
    "section": "Adding a preset model",
    "name": "resnet34",
    "new": {},
    "lines": [
        ("engine/models/presets.cc", "constexpr std::array<Preset, 4> kPresets", ("4>", "5>")),
        ("engine/models/presets.cc", '^    {"resnet50", ', """\
    {"resnet34", "ResNet-34, for images of 224 x 224",
     [] {
       return PublishedResNet({3, 4, 6, 3}, false, false);
     }},
"""),
        ("tests/engine/models/presets_test.cc", '^                              {"resnet50", ',
         '                              {"resnet34", 224, 1000, 21\'797\'672},\n'),
    ],
}
ADDITIONS = [SCALE, TSV, RESNET34]
MODEL = """\
[[layer]]
type = "linear"
outputs = 8
activation = "tanh"

[[layer]]
type = "scale"
doublings = 2

[[layer]]
type = "linear"
outputs = "classes"
"""


def listed(page, section, name):
    """The paths in the section's tables: those of new files, and those of changed ones."""
    text = page[page.index(f"\n### {section}\n") + 1:]
    text = text[:text.index("\n### ")]
    files = {"new": set(), "changed": set()}
    kind = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells[:1] == ["new file"]:
            kind, column = "new", 0
        elif cells[:1] == ["line"]:
            kind, column = "changed", 1
        elif cells and not set(cells[0]) <= {"-"}:
            folder = ""
            for path in re.findall(r"`([^`]+)`", cells[column]):
                path = path.replace("<name>", name)
                if "/" not in path and (not folder or "." not in path):
                    continue  # what is changed there
                folder = path.rpartition("/")[0] or folder
                files[kind].add(path if "/" in path else f"{folder}/{path}")
    return files["new"], files["changed"]


class Copy:
    def __init__(self, folder):
        self.folder = folder
        if not folder.exists():
            for part in PARTS:
                source, target = ROOT / part, folder / part
                if source.is_dir():
                    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "build"))
                else:
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(source, target)
        self.page = (folder / "docs/development.md").read_text()

    def change(self, path, where, lines):
        file = self.folder / path
        before = where.startswith("^")
        where = where.lstrip("^")
        old = file.read_text().splitlines(keepends=True)
        found = [i for i, line in enumerate(old) if line.startswith(where)]
        assert len(found) == 1, f"{path}: expected one line that begins with {where!r}, found {len(found)}"
        place = found[0]
        if isinstance(lines, tuple):
            old[place] = old[place].replace(*lines)
        else:
            old.insert(place if before else place + 1, lines)
        file.write_text("".join(old))

    def add(self, addition):
        new, changed = listed(self.page, addition["section"], addition["name"])
        made = set(addition["new"])
        touched = {path for path, _, _ in addition["lines"]}
        title = f'docs/development.md, "{addition["section"]}"'
        assert made == new, f"{title}: lists the new files {sorted(new)}, and {sorted(made)} are needed"
        assert touched == changed, f"{title}: lists changes of {sorted(changed)}, and of {sorted(touched)} they are needed"
        for path, text in addition["new"].items():
            assert not (self.folder / path).exists(), f"{path} exists"
            (self.folder / path).write_text(text)
        for path, where, lines in addition["lines"]:
            self.change(path, where, lines)
        return made | touched


def check_page(page):
    """Every file that the page says to change exists."""
    page = page[page.index("\n## Extending Stagecoach\n"):page.index("\n## Packages\n")]
    for section in re.findall(r"^### (Adding .*)$", page, re.MULTILINE):
        for path in listed(page + "\n### ", section, "x")[1]:
            assert (ROOT / path).is_file(), f'docs/development.md, "{section}": there is no {path}'


def run(command, folder):
    print("+", " ".join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=folder, check=True)


def build(copy, folder, scratch):
    def make(*targets):
        run(["cmake", "--build", folder, "--target", *targets, "--", "--quiet"], copy)

    run(["cmake", "-S", copy, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"], copy)
    make("stagecoach")
    rows = [f"{x / 50 - 1}\t{(x * x) % 7 / 7}\t{int(x > 50)}\n" for x in range(100)]
    (scratch / "a.tsv").write_text("".join(rows))
    (scratch / "scaled.toml").write_text(MODEL)
    program = folder / "tools/stagecoach"
    run([program, "train", "--data", "a.tsv", "--model", "scaled.toml", "--stages", "3", "--global-batch-size", "8",
         "--micro-batches", "4", "--epochs", "20", "--learning-rate", "0.05", "--checkpoint", "run"], scratch)
    run([program, "predict", "--checkpoint", "run", "--data", "a.tsv"], scratch)
    run([program, "profile", "--model", "resnet34", "--analytic", "--data", "synthetic:8x150528x10"], scratch)
    make("engine_data_test", "engine_test")
    run([folder / "tests/engine/data/engine_data_test", "--gtest_filter=TsvFormat*"], folder)
    run([folder / "tests/engine/engine_test", "--gtest_filter=Presets*:*/Scale*:*Scale"], folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--copy", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        check_page((ROOT / "docs/development.md").read_text())
        copy = Copy(options.copy or scratch / "copy")
        files = set().union(*(copy.add(addition) for addition in ADDITIONS))
        # Each header is compiled with a source that includes it.
        sources = sorted(path for path in files if path.endswith(".cc"))
        for source in sources + ["engine/models/model_file.cc", "engine/data/formats/load.cc"]:
            run([options.compiler, *FLAGS, "-I.", source], copy.folder)
        if options.build:
            build(copy.folder, options.build.resolve(), scratch)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (AssertionError, subprocess.CalledProcessError) as error:
        sys.exit(f"extending_test: {error}")
