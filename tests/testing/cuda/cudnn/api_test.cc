// Checks that the backend's declarations of cuDNN's graph API (kernels/cuda/cudnn/api.h) match the
// library's own header, where that is installed.
#include "kernels/cuda/cudnn/api.h"

#include <type_traits>

#include "gtest/gtest.h"
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>

namespace stagecoach::testing::cudnn_api_test {
namespace {

namespace api = kernels::cudnn;

// True if the library's function can be called as ours is: enumerations are ints to both.
template <typename Theirs, typename Ours>
struct AsOurs;
template <typename Result, typename... Theirs, typename OurResult, typename... Ours>
struct AsOurs<Result(Theirs...), OurResult (*)(Ours...)> {
  template <typename One, typename Other>
  static constexpr bool kAlike =
      sizeof(One) == sizeof(Other) && std::is_pointer_v<One> == std::is_pointer_v<Other>;
  template <typename One>
  using Sized = std::conditional_t<std::is_void_v<One>, char, One>;
  static constexpr bool kValue =
      kAlike<Sized<Result>, Sized<OurResult>> && (kAlike<Theirs, Ours> && ...);
};

TEST(CudnnApi, NumbersAreTheLibrarys) {
#define STAGECOACH_EXPECT_SAME(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
  using api::Attribute, api::AttributeType, api::DataType, api::DescriptorType, api::PointwiseMode,
      api::Status;
  STAGECOACH_EXPECT_SAME(Status::kSuccess, CUDNN_STATUS_SUCCESS);
  STAGECOACH_EXPECT_SAME(Status::kNotInitialized, CUDNN_STATUS_NOT_INITIALIZED);
  STAGECOACH_EXPECT_SAME(Status::kBadParam, CUDNN_STATUS_BAD_PARAM);
  STAGECOACH_EXPECT_SAME(Status::kNotSupported, CUDNN_STATUS_NOT_SUPPORTED);
  STAGECOACH_EXPECT_SAME(Status::kInternalError, CUDNN_STATUS_INTERNAL_ERROR);
  STAGECOACH_EXPECT_SAME(Status::kExecutionFailed, CUDNN_STATUS_EXECUTION_FAILED);
  STAGECOACH_EXPECT_SAME(DataType::kFloat, CUDNN_DATA_FLOAT);
  STAGECOACH_EXPECT_SAME(DataType::kInt32, CUDNN_DATA_INT32);
  STAGECOACH_EXPECT_SAME(DataType::kBfloat16, CUDNN_DATA_BFLOAT16);
  STAGECOACH_EXPECT_SAME(DataType::kBoolean, CUDNN_DATA_BOOLEAN);
  STAGECOACH_EXPECT_SAME(api::ReduceOperator::kAdd, CUDNN_REDUCE_TENSOR_ADD);
  STAGECOACH_EXPECT_SAME(api::ReduceOperator::kMax, CUDNN_REDUCE_TENSOR_MAX);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kAdd, CUDNN_POINTWISE_ADD);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kMul, CUDNN_POINTWISE_MUL);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kDiv, CUDNN_POINTWISE_DIV);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kSub, CUDNN_POINTWISE_SUB);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kExp, CUDNN_POINTWISE_EXP);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kLog, CUDNN_POINTWISE_LOG);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kCmpGe, CUDNN_POINTWISE_CMP_GE);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kGenIndex, CUDNN_POINTWISE_GEN_INDEX);
  STAGECOACH_EXPECT_SAME(PointwiseMode::kBinarySelect, CUDNN_POINTWISE_BINARY_SELECT);
  STAGECOACH_EXPECT_SAME(api::HeuristicMode::kA, CUDNN_HEUR_MODE_A);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kNondeterministic,
                         CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  STAGECOACH_EXPECT_SAME(DescriptorType::kPointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kEngine, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kEngineConfig, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kEngineHeuristic, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kExecutionPlan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kKnobChoice, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationPointwise,
                         CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationGraph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kVariantPack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kTensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kMatmul, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationMatmul,
                         CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kReduction, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationReduction,
                         CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationReshape,
                         CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(AttributeType::kHandle, CUDNN_TYPE_HANDLE);
  STAGECOACH_EXPECT_SAME(AttributeType::kDataType, CUDNN_TYPE_DATA_TYPE);
  STAGECOACH_EXPECT_SAME(AttributeType::kBoolean, CUDNN_TYPE_BOOLEAN);
  STAGECOACH_EXPECT_SAME(AttributeType::kInt64, CUDNN_TYPE_INT64);
  STAGECOACH_EXPECT_SAME(AttributeType::kVoidPointer, CUDNN_TYPE_VOID_PTR);
  STAGECOACH_EXPECT_SAME(AttributeType::kHeuristicMode, CUDNN_TYPE_HEUR_MODE);
  STAGECOACH_EXPECT_SAME(AttributeType::kKnobType, CUDNN_TYPE_KNOB_TYPE);
  STAGECOACH_EXPECT_SAME(AttributeType::kNumericalNote, CUDNN_TYPE_NUMERICAL_NOTE);
  STAGECOACH_EXPECT_SAME(AttributeType::kPointwiseMode, CUDNN_TYPE_POINTWISE_MODE);
  STAGECOACH_EXPECT_SAME(AttributeType::kDescriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(AttributeType::kReduceOperator, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kPointwiseMode, CUDNN_ATTR_POINTWISE_MODE);
  STAGECOACH_EXPECT_SAME(Attribute::kPointwiseMathPrecision, CUDNN_ATTR_POINTWISE_MATH_PREC);
  STAGECOACH_EXPECT_SAME(Attribute::kPointwiseAxis, CUDNN_ATTR_POINTWISE_AXIS);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineHeuristicMode, CUDNN_ATTR_ENGINEHEUR_MODE);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineHeuristicOperationGraph,
                         CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineHeuristicResults, CUDNN_ATTR_ENGINEHEUR_RESULTS);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineConfigEngine, CUDNN_ATTR_ENGINECFG_ENGINE);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineConfigKnobChoices, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
  STAGECOACH_EXPECT_SAME(Attribute::kExecutionPlanHandle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
  STAGECOACH_EXPECT_SAME(Attribute::kExecutionPlanEngineConfig,
                         CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  STAGECOACH_EXPECT_SAME(Attribute::kExecutionPlanWorkspaceSize,
                         CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  STAGECOACH_EXPECT_SAME(Attribute::kKnobChoiceKnobType, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kKnobChoiceKnobValue, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationPointwiseDescriptor,
                         CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationPointwiseX, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationPointwiseB, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationPointwiseY, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationPointwiseT, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationGraphHandle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationGraphOps, CUDNN_ATTR_OPERATIONGRAPH_OPS);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorByteAlignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorDataType, CUDNN_ATTR_TENSOR_DATA_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorDimensions, CUDNN_ATTR_TENSOR_DIMENSIONS);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorStrides, CUDNN_ATTR_TENSOR_STRIDES);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorUniqueId, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorIsVirtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  STAGECOACH_EXPECT_SAME(Attribute::kTensorIsByValue, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  STAGECOACH_EXPECT_SAME(Attribute::kVariantPackUniqueIds, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  STAGECOACH_EXPECT_SAME(Attribute::kVariantPackDataPointers,
                         CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  STAGECOACH_EXPECT_SAME(Attribute::kVariantPackWorkspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineGlobalIndex, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineNumericalNote, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
  STAGECOACH_EXPECT_SAME(Attribute::kMatmulCompType, CUDNN_ATTR_MATMUL_COMP_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationMatmulA, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationMatmulB, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationMatmulC, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationMatmulDescriptor, CUDNN_ATTR_OPERATION_MATMUL_DESC);
  STAGECOACH_EXPECT_SAME(Attribute::kReductionOperator, CUDNN_ATTR_REDUCTION_OPERATOR);
  STAGECOACH_EXPECT_SAME(Attribute::kReductionCompType, CUDNN_ATTR_REDUCTION_COMP_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationReductionX, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationReductionY, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationReductionDescriptor,
                         CUDNN_ATTR_OPERATION_REDUCTION_DESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationReshapeX, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationReshapeY, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  STAGECOACH_EXPECT_SAME(api::ConvolutionMode::kCrossCorrelation, CUDNN_CROSS_CORRELATION);
  STAGECOACH_EXPECT_SAME(api::HeuristicMode::kFallback, CUDNN_HEUR_MODE_FALLBACK);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kTensorCore, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kDownConvertInputs,
                         CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kReducedPrecisionReduction,
                         CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kFft, CUDNN_NUMERICAL_NOTE_FFT);
  STAGECOACH_EXPECT_SAME(api::NumericalNote::kWinograd, CUDNN_NUMERICAL_NOTE_WINOGRAD);
  STAGECOACH_EXPECT_SAME(DescriptorType::kConvolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationConvolutionForward,
                         CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationConvolutionBackwardFilter,
                         CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kOperationConvolutionBackwardData,
                         CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(DescriptorType::kDeviceProperties, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  STAGECOACH_EXPECT_SAME(AttributeType::kFloat, CUDNN_TYPE_FLOAT);
  STAGECOACH_EXPECT_SAME(AttributeType::kConvolutionMode, CUDNN_TYPE_CONVOLUTION_MODE);
  STAGECOACH_EXPECT_SAME(AttributeType::kChar, CUDNN_TYPE_CHAR);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionCompType, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionMode, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionDilations, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionStrides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionPostPaddings, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionPrePaddings, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  STAGECOACH_EXPECT_SAME(Attribute::kConvolutionSpatialDimensions,
                         CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
  STAGECOACH_EXPECT_SAME(Attribute::kEngineHeuristicDeviceProperties,
                         CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  STAGECOACH_EXPECT_SAME(Attribute::kExecutionPlanDeviceProperties,
                         CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
  STAGECOACH_EXPECT_SAME(Attribute::kDevicePropertiesJson,
                         CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardAlpha,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardBeta,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardDescriptor,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardW,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardX,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionForwardY,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataAlpha,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataBeta,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataDescriptor,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataW,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataDx,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionDataDy,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterAlpha,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterBeta,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterDescriptor,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterDw,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterX,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X);
  STAGECOACH_EXPECT_SAME(Attribute::kOperationConvolutionFilterDy,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY);
#undef STAGECOACH_EXPECT_SAME
}

TEST(CudnnApi, FunctionsAreTheLibrarys) {
  static_assert(AsOurs<decltype(cudnnGetVersion), decltype(api::Api::get_version)>::kValue);
  static_assert(
      AsOurs<decltype(cudnnGetErrorString), decltype(api::Api::get_error_string)>::kValue);
  static_assert(
      AsOurs<decltype(cudnnGetLastErrorString), decltype(api::Api::get_last_error_string)>::kValue);
  static_assert(AsOurs<decltype(cudnnCreate), decltype(api::Api::create)>::kValue);
  static_assert(AsOurs<decltype(cudnnDestroy), decltype(api::Api::destroy)>::kValue);
  static_assert(AsOurs<decltype(cudnnSetStream), decltype(api::Api::set_stream)>::kValue);
  static_assert(AsOurs<decltype(cudnnBackendCreateDescriptor),
                       decltype(api::Api::create_descriptor)>::kValue);
  static_assert(AsOurs<decltype(cudnnBackendDestroyDescriptor),
                       decltype(api::Api::destroy_descriptor)>::kValue);
  static_assert(AsOurs<decltype(cudnnBackendFinalize), decltype(api::Api::finalize)>::kValue);
  static_assert(
      AsOurs<decltype(cudnnBackendSetAttribute), decltype(api::Api::set_attribute)>::kValue);
  static_assert(
      AsOurs<decltype(cudnnBackendGetAttribute), decltype(api::Api::get_attribute)>::kValue);
  static_assert(AsOurs<decltype(cudnnBackendExecute), decltype(api::Api::execute)>::kValue);
}

}  // namespace
}  // namespace stagecoach::testing::cudnn_api_test
#else
TEST(CudnnApi, IsTheLibrarys) { GTEST_SKIP() << "cudnn_graph.h is not installed"; }
#endif
