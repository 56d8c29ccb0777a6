// A library that CUDA loads into a program before its first call, if CUDA_INJECTION64_PATH names
// it. When the program ends, it writes when each kernel, copy and memset ran on the GPU, those in
// graphs included, to the file in $STAGECOACH_KERNEL_TIMES: JSON objects with "name", "grid"
// (blocks), "begin_ns" and "end_ns", one a line. tools/gpu_check (kernel_times.py) sums them.

#include <cupti.h>
#include <cxxabi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace {

// Anything that ran on the GPU. Names are kept once. Later versions of CUPTI's records begin as
// those that are read here do.
struct Work {
  const std::string* name;
  int64_t grid;
  uint64_t begin_ns, end_ns;
};

class Works {
 public:
  // Takes what CUPTI has written to a buffer. Called by its threads.
  void TakeAll(uint8_t* buffer, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS) Take(*record);
  }

  void WriteTo(const char* file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::ofstream out(file);
    for (const Work& work : works_) {
      out << nlohmann::json{{"name", *work.name},
                            {"grid", work.grid},
                            {"begin_ns", work.begin_ns},
                            {"end_ns", work.end_ns}}
                 .dump()
          << "\n";
    }
    out.flush();
    if (!out) std::fprintf(stderr, "kernel_times: cannot write %s\n", file);
  }

 private:
  void Take(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(record);
        Add(Demangled(kernel.name), int64_t{kernel.gridX} * kernel.gridY * kernel.gridZ, kernel);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY:
        Add("copy", 0, reinterpret_cast<const CUpti_ActivityMemcpy5&>(record));
        break;
      case CUPTI_ACTIVITY_KIND_MEMSET:
        Add("memset", 0, reinterpret_cast<const CUpti_ActivityMemset4&>(record));
        break;
      default:
        break;
    }
  }

  template <typename Record>
  void Add(const std::string& name, int64_t grid, const Record& record) {
    works_.push_back({&*names_.insert(name).first, grid, record.start, record.end});
  }

  static std::string Demangled(const char* name) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> found(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    return found == nullptr ? name : found.get();
  }

  std::mutex mutex_;
  std::set<std::string> names_;
  std::vector<Work> works_;
};

// Never destroyed: CUPTI's threads may outlive the program's other objects.
Works& TheWorks() {
  static auto& works = *new Works;
  return works;
}

constexpr size_t kBufferBytes = size_t{8} << 20;

void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(alignof(std::max_align_t), kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void TakeBuffer(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer, size_t /*bytes*/,
                size_t valid_bytes) {
  TheWorks().TakeAll(buffer, valid_bytes);
  std::free(buffer);
}

void WriteAtExit() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  TheWorks().WriteTo(std::getenv("STAGECOACH_KERNEL_TIMES"));
}

}  // namespace

// What CUDA calls. Returns 1: the program continues in any case.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (std::getenv("STAGECOACH_KERNEL_TIMES") == nullptr) return 1;
  bool records = cuptiActivityRegisterCallbacks(&GiveBuffer, &TakeBuffer) == CUPTI_SUCCESS;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    records = records && cuptiActivityEnable(kind) == CUPTI_SUCCESS;
  }
  if (records) {
    std::atexit(&WriteAtExit);
  } else {
    std::fputs("kernel_times: CUPTI records nothing here\n", stderr);
  }
  return 1;
}
