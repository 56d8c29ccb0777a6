#ifndef STAGECOACH_KERNELS_CUDA_CUDNN_API_H_
#define STAGECOACH_KERNELS_CUDA_CUDNN_API_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// The part of cuDNN 9's graph API that is used here, declared anew: the library is opened at run
// time if it exists, and not even its headers are needed to build. Names and numbers are those of
// cudnn_graph.h (tests/testing/cuda/cudnn/api_test.cc compares them).
namespace stagecoach::kernels::cudnn {

struct Context;
using Handle = Context*;   // cudnnHandle_t
using Descriptor = void*;  // cudnnBackendDescriptor_t

enum class Status : int {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kNotSupported = 3000,
  kInternalError = 4000,
  kExecutionFailed = 5000,
};
enum class DataType : int { kFloat = 0, kInt32 = 4, kBfloat16 = 9, kBoolean = 11 };
enum class ReduceOperator : int { kAdd = 0, kMax = 3 };
enum class PointwiseMode : int {
  kAdd = 0,
  kMul = 1,
  kDiv = 6,
  kSub = 9,
  kExp = 13,
  kLog = 15,
  kCmpGe = 303,
  kGenIndex = 501,
  kBinarySelect = 601,
};
enum class ConvolutionMode : int { kCrossCorrelation = 1 };
enum class HeuristicMode : int { kFallback = 2, kA = 3 };
enum class NumericalNote : int {
  kTensorCore = 0,
  kDownConvertInputs = 1,
  kReducedPrecisionReduction = 2,
  kFft = 3,
  kNondeterministic = 4,
  kWinograd = 5,
};

enum class DescriptorType : int {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristic = 4,
  kExecutionPlan = 5,
  kKnobChoice = 7,
  kOperationConvolutionForward = 10,
  kOperationConvolutionBackwardFilter = 11,
  kOperationConvolutionBackwardData = 12,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 18,
  kOperationMatmul = 19,
  kReduction = 21,
  kOperationReduction = 22,
  kOperationReshape = 31,
  kDeviceProperties = 38,
};
enum class AttributeType : int {
  kHandle = 0,
  kDataType = 1,
  kBoolean = 2,
  kInt64 = 3,
  kFloat = 4,
  kVoidPointer = 6,
  kConvolutionMode = 7,
  kHeuristicMode = 8,
  kKnobType = 9,
  kNumericalNote = 11,
  kPointwiseMode = 14,
  kDescriptor = 15,
  kReduceOperator = 18,
  kChar = 24,
};
enum class Attribute : int {
  kPointwiseMode = 0,
  kPointwiseMathPrecision = 1,
  kPointwiseAxis = 9,
  kConvolutionCompType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDimensions = 106,
  kEngineHeuristicMode = 200,
  kEngineHeuristicOperationGraph = 201,
  kEngineHeuristicResults = 202,
  kEngineHeuristicDeviceProperties = 204,
  kEngineConfigEngine = 300,
  kEngineConfigKnobChoices = 302,
  kExecutionPlanHandle = 400,
  kExecutionPlanEngineConfig = 401,
  kExecutionPlanWorkspaceSize = 402,
  kExecutionPlanDeviceProperties = 407,
  kKnobChoiceKnobType = 600,
  kKnobChoiceKnobValue = 601,
  kOperationConvolutionForwardAlpha = 700,
  kOperationConvolutionForwardBeta = 701,
  kOperationConvolutionForwardDescriptor = 702,
  kOperationConvolutionForwardW = 703,
  kOperationConvolutionForwardX = 704,
  kOperationConvolutionForwardY = 705,
  kOperationConvolutionDataAlpha = 706,
  kOperationConvolutionDataBeta = 707,
  kOperationConvolutionDataDescriptor = 708,
  kOperationConvolutionDataW = 709,
  kOperationConvolutionDataDx = 710,
  kOperationConvolutionDataDy = 711,
  kOperationConvolutionFilterAlpha = 712,
  kOperationConvolutionFilterBeta = 713,
  kOperationConvolutionFilterDescriptor = 714,
  kOperationConvolutionFilterDw = 715,
  kOperationConvolutionFilterX = 716,
  kOperationConvolutionFilterDy = 717,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kOperationPointwiseT = 758,
  kOperationGraphHandle = 800,
  kOperationGraphOps = 801,
  kTensorByteAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kTensorIsByValue = 908,
  kVariantPackUniqueIds = 1000,
  kVariantPackDataPointers = 1001,
  kVariantPackWorkspace = 1003,
  kEngineGlobalIndex = 1301,
  kEngineNumericalNote = 1303,
  kMatmulCompType = 1500,
  kOperationMatmulA = 1520,
  kOperationMatmulB = 1521,
  kOperationMatmulC = 1522,
  kOperationMatmulDescriptor = 1523,
  kReductionOperator = 1600,
  kReductionCompType = 1601,
  kOperationReductionX = 1610,
  kOperationReductionY = 1611,
  kOperationReductionDescriptor = 1612,
  kOperationReshapeX = 2200,
  kOperationReshapeY = 2201,
  kDevicePropertiesJson = 2702,
};

// The functions of the library.
struct Api {
  size_t (*get_version)();
  const char* (*get_error_string)(Status);
  void (*get_last_error_string)(char* text, size_t bytes);
  Status (*create)(Handle*);
  Status (*destroy)(Handle);
  Status (*set_stream)(Handle, cudaStream_t);
  Status (*create_descriptor)(DescriptorType, Descriptor*);
  Status (*destroy_descriptor)(Descriptor);
  Status (*finalize)(Descriptor);
  Status (*set_attribute)(Descriptor, Attribute, AttributeType, int64_t count, const void* values);
  Status (*get_attribute)(Descriptor, Attribute, AttributeType, int64_t capacity, int64_t* count,
                          void* values);
  Status (*execute)(Handle, Descriptor plan, Descriptor variant_pack);
};

}  // namespace stagecoach::kernels::cudnn

#endif  // STAGECOACH_KERNELS_CUDA_CUDNN_API_H_
