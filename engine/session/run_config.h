#ifndef STAGECOACH_ENGINE_SESSION_RUN_CONFIG_H_
#define STAGECOACH_ENGINE_SESSION_RUN_CONFIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/retention.h"
#include "engine/data/augment.h"
#include "engine/data/dataset.h"
#include "engine/data/formats/idx.h"
#include "engine/models/model.h"
#include "engine/models/model_file.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/session/machine/device_choice.h"
#include "engine/session/machine/notices.h"
#include "engine/train/fit.h"
#include "engine/train/prepared_run.h"
#include "engine/train/stop_condition.h"
#include "engine/train/trainer.h"
#include "partition/cost/cluster.h"
#include "partition/cost/layer_cost.h"
#include "partition/plan/plan.h"

namespace stagecoach::engine {

// Everything that decides a run: data, model, devices, plan, optimizer and what is saved. The
// defaults are tuned for Fashion-MNIST.
struct RunConfig {
  std::optional<std::string> data;  // unset: default_data
  std::string default_data = kFashionMnistDirectory;
  std::string label = "label";               // column of a .csv file
  std::vector<std::string> dropped_columns;  // of a .csv file
  std::optional<ChannelOrder> channels;      // of arrays; unset: ArrayOptions'
  // Of files of images: the side of samples (unset: the model's, kLargeImageSide if it takes any,
  // or kDefaultImageSide for the default network), and what happens with those that cannot be read.
  std::optional<int64_t> image_size;
  bool skips_broken_images = false;
  Augmentation augmentation;
  // "cross-entropy", or "mse", which takes labels that are numbers; unset: the loss of the model's
  // file, or cross-entropy if it has none.
  std::optional<std::string> loss;
  // Of a cross-entropy, in training: how much of a label is spread over all classes, and how much
  // each class counts: "auto" (BalancedWeights), a number per class, or a file of these. "": alike.
  float label_smoothing = 0.0F;
  std::string class_weights;
  // The source of the test set; "": the data. If the data are one file, the test set is
  // this share of it (unset: DataSource's).
  std::string test_data;
  std::optional<double> test_fraction;
  // The data are hashed, for a run that is saved, resumed, or shared by several processes.
  bool takes_fingerprint = false;
  bool needs_shapes_only = false;  // the data's rows are not needed, as for a plan
  // Training rows; 0: all. Unset: kDefaultImageRows for images, all rows of other data.
  std::optional<int64_t> rows;
  // Tokens of a sample, and of the vocabulary; unset: the model's (ParseModelTokens), or
  // TokenOptions' if it has none.
  std::optional<int64_t> context, vocabulary;
  std::string tokenizer;  // a file, or "bytes", that made or makes tokens of text; "": none
  // Of conversations: TokenOptions.
  std::string chat_template;
  bool trains_on_all = false;
  bool packs_examples = false;

  std::string model_file;  // or a name (ModelFileNamed); "": the default network
  std::string model_text;  // the text of a checkpoint's model; it replaces the file's
  // A Hugging Face folder that the initial parameters come from, and the model too if it is not
  // named; "": none.
  std::string initial_parameters;
  // Of initial parameters of a saved run, the last layer's and, of a model of tokens, the table of
  // its embedding are drawn instead: the data may have other classes, or other tokens.
  bool draws_head = false;
  // The model is frozen and gets adapters: ParseLora, or a folder of PEFT's with adapters to start
  // from. "": it does not.
  std::string lora;
  // The weights of linear layers are stored so, and frozen; nothing: as the model says.
  std::optional<kernels::Quantization> quantization;
  // The size of the default network; unset: NetworkSizeOf.
  std::optional<int> layers;
  std::optional<int64_t> width;

  // Devices of each replica; unset: kDefaultStages, or fewer if the model has fewer layers, or
  // those of a schedule file.
  std::optional<int> stages;
  int replicas = 1;
  int tensor_parts = 1;  // devices that take the place of each, and share layers that are cut
  // Blocks into which layers are cut; unset: as many as devices share them, or as the model says.
  std::optional<int> tensor_blocks;
  std::optional<int> gradient_blocks;  // unset: as many as replicas
  bool shards_optimizer = false;
  partition::ReductionKind reduction = partition::ReductionKind::kTree;
  // A generator's name, "auto", or a file; "": "1f1b", or "auto" if that is faster and fits.
  std::string schedule;
  int chunks = 0;  // stages per device; 0: the schedule's own number
  // Micro-batches of a step, over all replicas; unset: kDefaultMicroBatches, or one per gradient
  // block if these do not divide it, or those of a schedule file for each replica.
  std::optional<int> micro_batches;
  std::optional<int64_t> batch;  // samples of a step; unset: DefaultBatch
  Recompute recompute = Recompute::kPlanned;
  // The share of stashes that are moved to the host's memory (partition::Plan::offload); unset:
  // that of a given plan, or none.
  std::optional<double> offload;
  bool offloads_optimizer = false;  // its state is in the host's memory (partition::Replication)
  int64_t host_memory_bytes = 0;    // that each device may use for both; 0: no limit
  DeviceChoice device;
  std::optional<int> rank;  // the rank of this process; unset: it has all devices
  // Whether this process speaks for all.
  bool is_first_rank() const { return rank.value_or(0) == 0; }
  bool is_process() const { return rank.has_value(); }  // whether each rank of the run is one
  // A launcher can replace a process that is lost (engine/comm/supervisor.h).
  bool is_supervised = false;
  // The devices that are left of a run. Unless the given plan or schedule is for that number, the
  // run takes the fastest plan over them, with any stages and replicas.
  std::optional<int> devices_left;
  int64_t device_memory_bytes = 0;  // of devices without a limit of their own; 0: no limit
  // Devices that differ are read from this file (partition/io/cluster_file.h) rather than given;
  // DeviceSpec::cluster. `stages` is then all of them, if it is not set.
  std::string cluster_file;                   // "": none
  std::optional<partition::Cluster> cluster;  // replaces the file's
  std::string profile = "analytic";
  // The plan is read from this file rather than made; `stages` to `batch` and `profile` are not
  // used.
  std::string plan_file;                // "": none
  std::optional<partition::Plan> plan;  // the plan of a checkpoint; it replaces the file's

  std::string optimizer = "adamw";
  std::optional<float> weight_decay;  // unset: the optimizer's own
  // By name (HyperParameter), of the optimizer's own; absent: its default.
  std::map<std::string, float> hyper_parameters;
  std::vector<ParameterRule> parameter_rules;  // Model's
  float clip_norm = 0.0F;
  float ema_decay = 0.0F;                   // Optimizer's
  std::optional<OnNonFinite> on_nonfinite;  // unset: kStop, by the loss alone unless clipped

  std::string checkpoints;  // the folder that the run is saved in; "": `runs` decides
  // A run without `checkpoints` makes a folder of its own in this one (MakeRunFolder), and is saved
  // there once, at its end, and when the caller asks for it; "": it is not saved. Processes on
  // several hosts must share the folder.
  std::string runs;
  bool saves_at_end_only = false;  // or if asked: not as often as it pays, nor after each epoch
  bool resume = false;
  bool data_changed = false;           // it is known that the data changed since the run was saved
  std::optional<int64_t> every_steps;  // between saves; unset: as often as it pays (SaveInterval)
  std::vector<std::string> taken;      // flags that are those of a checkpoint
  std::vector<std::string> taken_defaults;  // flags that a checkpoint had, and had not been given
  int kept_checkpoints = Retention{}.newest;
  int64_t kept_every_steps = 0;

  int epochs = 2;
  std::optional<int64_t> steps;  // of the run, in place of epochs
  // Steps between evaluations, in addition to those after epochs; 0: none.
  int64_t evaluate_every_steps = 0;
  // The number of test rows that are evaluated, spread over all (SpreadSubset); 0: all.
  int64_t evaluation_rows = 0;
  std::optional<StopCondition> stop_when;
  std::string best_by = "test_loss";  // FitOptions, and so is the next
  int64_t patience = 0;
  std::vector<std::string> evaluation_metrics;  // of MetricTypes, besides loss and accuracy
  std::vector<std::shared_ptr<EvaluationMetric>> own_metrics;
  int64_t sampled_answers = 0;  // of the model (AnswerSampler), at each evaluation
  int64_t log_every_steps = 0;  // between lines of steps; 0: none, but in a file of metrics all
  std::optional<float> learning_rate;  // unset: LearningRateOf decides, and so for the next two
  std::string learning_rate_schedule = "warmup-cosine";
  std::optional<int64_t> warmup_steps;
  std::optional<float> min_learning_rate;  // the last rate, of schedules that fall to it
  uint64_t seed = 1;
  double deadline_seconds = 300.0;
  int64_t replica_check_steps = 1000;  // 0: never

  // Files to write traces of one step to; "": none.
  std::string trace;                   // as it was measured
  std::string simulated_trace;         // as a simulation at the measured times of actions has it
  std::optional<int64_t> traced_step;  // of the run, counts from 1; unset: the last one

  Notices notices;
  // Why the caller wants work to stop soon, such as a signal; 0: it does not. Null: it never does.
  std::function<int()> wants_stop;
  // Whether the caller has asked for a checkpoint since the last call, such as by a signal. Null:
  // it never does.
  std::function<bool()> wants_save;
  std::string program;  // the name and version of the program that saves, for checkpoints
};

inline LabelKind LabelsOf(const RunConfig& options) {
  return options.loss == "mse" ? LabelKind::kNumbers : LabelKind::kClasses;
}

inline std::string DataOf(const RunConfig& options) {
  return options.data.value_or(options.default_data);
}

// Returns where the test set comes from.
inline std::string TestDataOf(const RunConfig& options) {
  return options.test_data.empty() ? DataOf(options) : options.test_data;
}

// Returns "reads data.csv (1.2 GB)", for Notices::BeginWork.
std::string DescribeReading(const std::string& data);

// Returns "measures the layers, with micro-batches of 8, 16 rows", for Notices::BeginWork.
std::string DescribeMeasuring(absl::Span<const int64_t> micro_batch_rows);

inline bool WantsTraces(const RunConfig& options) {
  return !options.trace.empty() || !options.simulated_trace.empty();
}

inline constexpr int64_t kDefaultImageRows = 10'000;
inline constexpr int64_t kLargeImageSide = 224;
inline constexpr char kUsualSchedule[] = "1f1b";
inline constexpr int kDefaultStages = 4;
inline constexpr int kDefaultMicroBatches = 4;
// The share of all steps that the warm-up takes.
inline constexpr double kWarmupShare = 0.1;

// Returns InvalidArgument, with the nearest batch that would do, unless the batch divides into that
// many equal micro-batches.
absl::Status CheckBatch(int64_t batch, int64_t micro_batches);
// Returns the default number of samples per step: 128, rounded down to a multiple of the
// micro-batches. With few rows (0: unknown) it is smaller, so that an epoch has at least eight
// steps if possible.
int64_t DefaultBatch(int64_t rows, int64_t micro_batches);

// Returns "--train-samples is 80, in the checkpoint": the number of rows, which must be set, and
// where it comes from.
std::string RowsFlag(const RunConfig& options);

// Returns how many of the devices can be measured at once: CPU devices need cores, and layers are
// measured on one GPU.
int DevicesAtOnce(int devices, const DeviceSpec& device);

// Returns how many of the devices can compute at the same moment: CPU devices share the cores that
// this process may use; GPUs have no limit.
double CoresFor(const DeviceSpec& device);

// Returns ResourceExhausted if this machine has too little memory to train all layers at once on
// CPU devices, which measuring them does.
absl::Status CheckCanMeasure(const std::vector<partition::LayerCost>& layers,
                             const DeviceSpec& device);

// Returns what messages and checkpoints call the model: its name or file, or the folder of its
// initial parameters.
inline constexpr char kDefaultModel[] = "default";
std::string NameOfModel(const RunConfig& options);

// The size of the default network, for samples of that many features: the given one, or what is
// left of it as the data need: 4 layers of width 64 for a few features, up to 20 layers of width
// 2304 for those of 28 x 28 pixels or more. For tokens (features of 0) it is that of a GPT: blocks,
// and the width of an embedding.
struct NetworkSize {
  int layers = 0;
  int64_t width = 0;
};
NetworkSize NetworkSizeOf(const RunConfig& options, int64_t features);

// Returns the number of features that NetworkSizeOf takes.
int64_t NetworkFeaturesOf(const Dataset& data);

// Returns where the processes of a run learn the results of the loss: before steps, if a process
// that is lost can then be replaced (engine/train/recovery/state_snapshot.h).
schedule::ResultsPlace ResultsOf(const RunConfig& options,
                                 const partition::Replication& replication);

// Returns the learning rates of a run of `steps` steps over data of that many features
// (NetworkFeaturesOf). Defaults: the rate, or its peak, is 0.01 for sgd, and for adamw 0.09 /
// width, at most 1e-3. (An update of Adam moves every weight by about the rate, so what it moves an
// activation by grows with the number of inputs; a model file's widths are unknown here: 1e-3.
// Adapters begin with 0: 2e-4.) The warm-up takes kWarmupShare of the steps (none of a constant
// rate, 0.3 of one-cycle), and at the end the rate is 0. InvalidArgument: an option that its
// schedule does not have, or that is out of range.
absl::StatusOr<LearningRate> LearningRateOf(const RunConfig& options, int64_t features,
                                            int64_t steps);

// Returns the devices that the configuration describes, read from its file if they are in one;
// nothing: they are all alike.
absl::StatusOr<std::optional<partition::Cluster>> ReadCluster(const RunConfig& options);
// Returns whether the cluster says how many threads any of its devices has.
bool NamesThreads(const partition::Cluster& cluster);
// Returns what messages call them.
std::string NameOfCluster(const RunConfig& options);

// Sets the cluster of such devices. InvalidArgument: it has fewer, or what is said of them
// contradicts other options.
absl::Status SetCluster(const RunConfig& options, const partition::Cluster& cluster, int devices,
                        DeviceSpec& device);

// Returns the choice of a configuration that leaves the threads of CPU devices open: each of
// `devices` has an equal share of this machine's processors, unless the cluster says how many.
absl::StatusOr<DeviceChoice> ShareProcessors(const RunConfig& options, int devices);

// Returns what the first `devices` of the run's devices are. Errors: those of Resolve and
// SetCluster.
absl::StatusOr<DeviceSpec> ChooseDevices(const RunConfig& options, int devices);

// Reads the model from `text` or, if that is "", makes the default network for numbers.
absl::StatusOr<Model> MakeModel(const RunConfig& options, const std::string& text,
                                const ModelData& data);

// Returns Unavailable if the plan does not fit the free memory of the GPUs that this process uses.
absl::Status CheckGpusHaveRoom(const RunConfig& options, const PreparedRun& run);

// The data, model and optimizer of a run.
struct Workload {
  TrainTest data;
  Model model;
  std::string model_text;  // what it was read from; "": it is the default network
  Optimizer optimizer;
};

// Returns the tokenizer in the folder of the initial parameters, if the data are text and no
// tokenizer is named; "" if there is none. A notice says why it is not the folder's first, unless
// `is_silent`.
absl::StatusOr<std::string> FindFolderTokenizer(const RunConfig& options, bool is_silent);

// Loads the data and makes or reads the model.
absl::StatusOr<Workload> PrepareWorkload(const RunConfig& options);

// A model without data, for work that needs none.
struct PlannedModel {
  Model model;
  Optimizer optimizer;
  int64_t rows = 0;  // to train on; 0: unknown
};
// Makes or reads the model. The data give its shapes, but a model of tokens needs no data: its
// context and vocabulary come from the configuration or the model.
absl::StatusOr<PlannedModel> PrepareModel(const RunConfig& options);

// A run with everything that is settled before its first step.
struct TrainingRun {
  // Returns the rows of an epoch that its batches leave over.
  int64_t rows_left_over() const { return data.train->rows() % prepared.plan().batch_rows(); }

  TrainTest data;
  std::string model_text;  // Workload's
  PreparedRun prepared;
  LearningRate learning_rate;
};

// Prepares the workload, which must have rows for a batch, and chooses a plan (plan_choice.h).
absl::StatusOr<TrainingRun> MakeRun(const RunConfig& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_RUN_CONFIG_H_
