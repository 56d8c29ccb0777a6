#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUDNN_OBJECTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUDNN_OBJECTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn/api.h"
#include "tests/testing/cuda/cudnn/graph.h"

// The objects of the stand-in of cuDNN.
namespace stagecoach::kernels::cudnn {
struct Context {
  int gpu;  // a handle belongs to the GPU that was current when it was created
  cudaStream_t stream = nullptr;
};
}  // namespace stagecoach::kernels::cudnn

namespace stagecoach::testing::cudnn {

// An engine with one knob, as one graph has it.
struct Engine {
  int64_t number = -1;
  int64_t knob = 0;
  std::shared_ptr<const Graph> graph;
  int64_t workspace_bytes = 0;
  std::vector<api::NumericalNote> notes = {};

  bool Has(api::NumericalNote note) const {
    return std::find(notes.begin(), notes.end(), note) != notes.end();
  }
};
inline constexpr int kKnobType = 24;

struct DescriptorObject {
  struct Values {
    api::AttributeType type;
    std::vector<std::byte> bytes;
  };

  api::DescriptorType type;
  bool is_finalized = false;
  std::map<api::Attribute, Values> attributes = {};
  std::shared_ptr<const Graph> graph = nullptr;  // of a graph, once it is finalized
  Engine engine = {};                            // of an engine, its configuration, knob and plan
  int64_t workspace_bytes = 0;                   // of a plan

  bool Has(api::Attribute name) const { return attributes.contains(name); }
  // Returns all values of an attribute, which are of type T; none if it is not set.
  template <typename T>
  std::vector<T> All(api::Attribute name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(values.data()), found->second.bytes.data(),
                values.size() * sizeof(T));
    return values;
  }
  template <typename T>
  T One(api::Attribute name, T otherwise = T()) const {
    const auto found = attributes.find(name);
    if (found != attributes.end()) {
      std::memcpy(&otherwise, found->second.bytes.data(), sizeof(T));
    }
    return otherwise;
  }
};

// Returns the object; aborts if it has been destroyed or was never made by the stand-in.
DescriptorObject& FindDescriptor(api::Descriptor descriptor);
// Returns null if it was not made, or has been destroyed.
api::Context* FindHandle(api::Handle handle);

api::Descriptor AddDescriptor(api::DescriptorType type);
void RemoveDescriptor(api::Descriptor descriptor);
api::Handle AddHandle(int gpu);
bool RemoveHandle(api::Handle handle);

// Implement cudnnBackendSetAttribute and cudnnBackendFinalize. On failure `reason` says why.
api::Status SetAttribute(DescriptorObject& descriptor, api::Attribute name, api::AttributeType type,
                         int64_t count, const void* values, const char*& reason);
api::Status Finalize(DescriptorObject& descriptor, std::string& reason);
// Returns the bytes of one value.
size_t BytesOf(api::AttributeType type);

}  // namespace stagecoach::testing::cudnn

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUDNN_OBJECTS_H_
