#include "tests/testing/cuda/cublas_lt/objects.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "base/check.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

// The existing objects.
class Objects {
 public:
  static Objects& Get() {
    static auto* const objects = new Objects;
    return *objects;
  }

  void Add(const void* object) {
    const std::lock_guard lock(mutex_);
    objects_.insert(object);
    CountBlasObject(1);
  }
  void Remove(const void* object) {
    const std::lock_guard lock(mutex_);
    STAGECOACH_CHECK(objects_.erase(object) == 1, "cuBLASLt: destroyed twice, or never created");
    CountBlasObject(-1);
  }
  void Expect(const void* object) {
    const std::lock_guard lock(mutex_);
    STAGECOACH_CHECK(object == nullptr || objects_.contains(object),
                     "cuBLASLt: used after it was destroyed, or never created");
  }

 private:
  std::mutex mutex_;
  std::set<const void*> objects_;
};

template <typename Object, typename Handle>
cublasStatus_t Create(const char* call, Handle* handle, Object object) {
  Progress();
  if (MustFail(call)) return CUBLAS_STATUS_ALLOC_FAILED;
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto* const made = new Object(object);
  Objects::Get().Add(static_cast<Handle>(made));
  *handle = made;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename Handle>
cublasStatus_t Destroy(Handle handle) {
  Progress();
  if (handle == nullptr) return CUBLAS_STATUS_SUCCESS;
  Objects::Get().Remove(handle);
  const std::unique_ptr<Object> object(static_cast<Object*>(handle));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename Handle>
const Object* FindObject(Handle handle) {
  Objects::Get().Expect(handle);
  return static_cast<const Object*>(handle);
}

// One attribute, whose size must be that of its field.
struct Field {
  void* address = nullptr;  // null: the stand-in does not know the attribute
  size_t bytes = 0;
};
template <typename T>
Field FieldOf(T& value) {
  return {&value, sizeof(value)};
}

cublasStatus_t Set(const char* call, Field field, const void* buffer, size_t bytes) {
  Progress();
  if (MustFail(call)) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (field.address == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (buffer == nullptr || bytes != field.bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field.address, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

Field FieldOf(MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return FieldOf(desc.compute_type);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return FieldOf(desc.scale_type);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return FieldOf(desc.pointer_mode);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return FieldOf(desc.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return FieldOf(desc.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return FieldOf(desc.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return FieldOf(desc.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return FieldOf(desc.bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return FieldOf(desc.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return FieldOf(desc.aux_leading);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return FieldOf(desc.aux_type);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return FieldOf(desc.multiprocessors);
    default:
      return {};
  }
}

Field FieldOf(MatrixLayout& layout, cublasLtMatrixLayoutAttribute_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return FieldOf(layout.type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return FieldOf(layout.order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return FieldOf(layout.rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return FieldOf(layout.columns);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return FieldOf(layout.leading);
    default:
      return {};
  }
}

Field FieldOf(MatmulPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return FieldOf(preference.search_mode);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return FieldOf(preference.max_workspace_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return FieldOf(preference.reduction_mask);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return FieldOf(preference.alignment_a);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return FieldOf(preference.alignment_b);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return FieldOf(preference.alignment_c);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return FieldOf(preference.alignment_d);
    case CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT:
      return FieldOf(preference.max_waves);
    default:
      return {};
  }
}

template <typename Object, typename Handle, typename Attribute>
cublasStatus_t SetAttribute(const char* call, Handle handle, Attribute attribute,
                            const void* buffer, size_t bytes) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  Objects::Get().Expect(handle);
  return Set(call, FieldOf(*static_cast<Object*>(handle), attribute), buffer, bytes);
}

}  // namespace

const cublasLtContext* Find(cublasLtHandle_t handle) { return FindObject<cublasLtContext>(handle); }
const MatmulDesc* Find(cublasLtMatmulDesc_t handle) { return FindObject<MatmulDesc>(handle); }
const MatrixLayout* Find(cublasLtMatrixLayout_t handle) { return FindObject<MatrixLayout>(handle); }
const MatmulPreference* Find(cublasLtMatmulPreference_t handle) {
  return FindObject<MatmulPreference>(handle);
}

}  // namespace stagecoach::testing::cuda

namespace stand_in = stagecoach::testing::cuda;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  if (stand_in::CurrentGpu() < 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  return stand_in::Create("cublasLtCreate", lightHandle, cublasLtContext{stand_in::CurrentGpu()});
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
  return stand_in::Destroy<cublasLtContext>(lightHandle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* matmulDesc,
                                        cublasComputeType_t computeType, cudaDataType_t scaleType) {
  stand_in::MatmulDesc desc;
  desc.compute_type = computeType;
  desc.scale_type = scaleType;
  return stand_in::Create("cublasLtMatmulDescCreate", matmulDesc, desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                              cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              size_t sizeInBytes) {
  return stand_in::SetAttribute<stand_in::MatmulDesc>("cublasLtMatmulDescSetAttribute", matmulDesc,
                                                      attr, buf, sizeInBytes);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t matmulDesc) {
  return stand_in::Destroy<stand_in::MatmulDesc>(matmulDesc);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* matLayout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  stand_in::MatrixLayout layout;
  layout.type = type;
  layout.rows = rows;
  layout.columns = cols;
  layout.leading = ld;
  return stand_in::Create("cublasLtMatrixLayoutCreate", matLayout, layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t matLayout,
                                                cublasLtMatrixLayoutAttribute_t attr,
                                                const void* buf, size_t sizeInBytes) {
  return stand_in::SetAttribute<stand_in::MatrixLayout>("cublasLtMatrixLayoutSetAttribute",
                                                        matLayout, attr, buf, sizeInBytes);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t matLayout) {
  return stand_in::Destroy<stand_in::MatrixLayout>(matLayout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* pref) {
  return stand_in::Create("cublasLtMatmulPreferenceCreate", pref, stand_in::MatmulPreference{});
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                                    cublasLtMatmulPreferenceAttributes_t attr,
                                                    const void* buf, size_t sizeInBytes) {
  return stand_in::SetAttribute<stand_in::MatmulPreference>("cublasLtMatmulPreferenceSetAttribute",
                                                            pref, attr, buf, sizeInBytes);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t pref) {
  return stand_in::Destroy<stand_in::MatmulPreference>(pref);
}

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the GPU program failed to execute";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "unknown error";
  }
}

}  // extern "C"
