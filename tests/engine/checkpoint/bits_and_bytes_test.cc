// Folders that are quantized otherwise than they should be. What right ones have is in
// lora_test.cc and quantized_test.cc.
#include "engine/checkpoint/files/bits_and_bytes.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/nn/parameter_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/models/lora_fixture.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::stagecoach::testing::TestFolder;

struct EditedTensor {
  SafetensorsEntry entry;
  std::string bytes;
};
using EditTensor = std::function<void(EditedTensor& tensor)>;  // an empty name removes it

// Copies a fixture's folder, with an edited tensor of the key projection.
void EditKeys(const std::string& fixture, const std::string& to, const std::string& suffix,
              const EditTensor& edit) {
  const std::string name = absl::StrCat("model.layers.0.self_attn.k_proj.", suffix);
  std::filesystem::copy(FixturePath(fixture), to, std::filesystem::copy_options::recursive);
  const std::string file = to + "/model.safetensors";
  const std::string bytes = base::ReadFile(file, 1 << 24).value();
  SafetensorsHeader header = ParseSafetensors(bytes, std::ssize(bytes)).value();
  std::vector<EditedTensor> tensors;
  bool is_found = false;
  for (const SafetensorsEntry& entry : header.tensors) {
    EditedTensor tensor = {
        entry, bytes.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes()))};
    is_found = is_found || entry.name == name;
    if (entry.name == name) edit(tensor);
    if (!tensor.entry.name.empty()) tensors.push_back(std::move(tensor));
  }
  ASSERT_TRUE(is_found) << name;
  header.tensors.clear();
  for (const EditedTensor& tensor : tensors) header.tensors.push_back(tensor.entry);
  std::ofstream out(file, std::ios::binary);
  out << LayOutSafetensors(header);
  for (const EditedTensor& tensor : tensors) out << tensor.bytes;
}

struct EditedKeys {
  std::string fixture, suffix;
  EditTensor edit;
};

// Opens such a folder, and reads the matrix that the keys are a part of.
absl::Status OpenEdited(const EditedKeys& edited) {
  const TestFolder folder;
  const std::string path = (folder.path() / "base").string();
  const std::string base = absl::StrCat("quantized/", edited.fixture, "/base");
  EditKeys(base, path, edited.suffix, edited.edit);
  const Transformer model = ReadHuggingFaceConfigFile(path).value();
  const absl::StatusOr<HuggingFaceFolder> opened = HuggingFaceFolder::Open(path, model);
  if (!opened.ok()) return opened.status();
  const int64_t outputs = (model.heads + 2 * model.kv_heads) * model.size_of_head();
  std::vector<float> values(static_cast<size_t>(model.width * outputs));
  return opened->Read({.name = "layer 1: 1.weight"},
                      kernels::Float32(values.data(), {model.width, outputs}));
}

EditTensor Remove() {
  return [](EditedTensor& tensor) { tensor.entry.name.clear(); };
}
EditTensor Shorten() {
  return [](EditedTensor& tensor) {
    const int64_t bytes = tensor.entry.bytes() / tensor.entry.shape.elements();
    tensor.entry.shape = {tensor.entry.shape.elements() - 1};
    tensor.bytes.resize(tensor.bytes.size() - static_cast<size_t>(bytes));
  };
}
EditTensor SetFloat(size_t index, float value) {
  return [=](EditedTensor& tensor) {
    tensor.bytes.replace(index * sizeof(value), sizeof(value),
                         reinterpret_cast<const char*>(&value), sizeof(value));
  };
}
EditTensor SetType(kernels::DType type) {
  return [=](EditedTensor& tensor) { tensor.entry.type = type; };
}
// Replaces the text by another of the same length.
EditTensor Say(const std::string& what, const std::string& other) {
  return [=](EditedTensor& tensor) {
    const size_t at = tensor.bytes.find(what);
    ASSERT_NE(at, std::string::npos) << tensor.bytes;
    ASSERT_EQ(what.size(), other.size());
    tensor.bytes.replace(at, what.size(), other);
  };
}

TEST(BitsAndBytesMatrix, OfAnotherFormIsRefused) {
  const std::string double_ = "llama_nf4", single = "llama_nf4_single", int8 = "llama_int8";
  const std::string state = "weight.quant_state.bitsandbytes__nf4";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Refusal<EditedKeys> refusals[] = {
      {{double_, "weight.absmax", Remove()}, "k_proj.weight.absmax\" is missing"},
      {{double_, "weight.absmax", Shorten()}, "absmax\" has 7 values, expected 8"},
      {{double_, "weight.nested_absmax", Remove()}, "nested_absmax\" is missing"},
      {{double_, "weight.nested_absmax", SetFloat(0, nan)}, "a scale that is not finite"},
      {{double_, "weight.quant_map", Remove()}, "quant_map\" is missing"},
      {{double_, "weight.quant_map", SetFloat(3, -0.4F)}, "k_proj.weight.quant_map\" has other"},
      {{double_, "weight.nested_quant_map", SetFloat(3, -0.4F)}, "nested_quant_map\" has other"},
      {{double_, "weight", Shorten()}, "weight\" has 255 values, expected 256"},
      {{double_, "weight", SetType(kernels::DType::kInt8)}, "values of another type"},
      {{double_, state, Remove()}, "k_proj.weight\" has the shape [256, 1]"},
      {{double_, state, Say("nf4", "fp4")}, "$.quant_type: is not \"nf4\""},
      {{double_, state, Say("\"blocksize\": 64", "\"blocksize\": 32")}, "$.blocksize: is 32"},
      {{double_, state, Say("blocksize\": 256", "blocksize\": 128")}, "$.nested_blocksize: is 128"},
      {{double_, state, Say("[16, 32]", "[32, 16]")}, "$.shape: is [32,16]"},
      {{double_, state, Say("{", "[")}, "k_proj.weight.quant_state"},
      {{single, "weight.absmax", SetFloat(7, nan)}, "a scale that is not finite"},
      {{single, "weight.absmax", SetType(kernels::DType::kInt32)}, "values of another type"},
      {{int8, "SCB", Shorten()}, "SCB\" has 15 values, expected 16"},
      {{int8, "SCB", SetFloat(0, nan)}, "a scale that is not finite"},
      {{int8, "SCB", Remove()}, "k_proj.weight\" has integers"},
      {{int8, "weight_format", [](EditedTensor& tensor) { tensor.bytes = "\1"; }},
       "is not stored row after row"},
  };
  ExpectRefusals(OpenEdited, refusals);
}

TEST(BitsAndBytesMatrix, TensorsOfItAreKnownByTheirNames) {
  const std::string matrix = "model.layers.0.mlp.up_proj.weight";
  for (const char* const suffix : {".absmax", ".nested_absmax", ".quant_map", ".nested_quant_map",
                                   ".quant_state.bitsandbytes__nf4", "_format"}) {
    EXPECT_EQ(BitsAndBytesMatrix::MatrixOf(matrix + suffix), matrix);
  }
  EXPECT_EQ(BitsAndBytesMatrix::MatrixOf("model.layers.0.mlp.up_proj.SCB"), matrix);
  for (const std::string& other : {matrix, matrix + ".absmin", std::string("absmax")}) {
    EXPECT_EQ(BitsAndBytesMatrix::MatrixOf(other), "");
  }
}

}  // namespace
}  // namespace stagecoach::engine
