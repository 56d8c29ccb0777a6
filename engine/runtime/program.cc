#include "engine/runtime/program.h"

#include <utility>

#include "absl/container/flat_hash_map.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::BlockKind;
using schedule::LastUse;
using schedule::Op;

StageId Next(StageId stage) { return StageId(stage.value() + 1); }
StageId Previous(StageId stage) { return StageId(stage.value() - 1); }

class Compiler {
 public:
  explicit Compiler(const ProgramInputs& inputs)
      : in_(inputs),
        trains_(inputs.schedule.HasBackward()),
        block_index_(Cells(schedule::kNumBlockKinds), Instruction::kNothing),
        receives_(Cells(2), Instruction::kNothing),
        offloads_(Cells(1), Instruction::kNothing),
        fetches_(Cells(1), Instruction::kNothing),
        last_send_(2 * static_cast<size_t>(inputs.schedule.num_stages()), Instruction::kNothing) {
    for (size_t i = 0; i < in_.memory.blocks.size(); ++i) {
      const schedule::Block& block = in_.memory.blocks[i];
      block_index_[Cell(block.stage, static_cast<size_t>(block.kind), schedule::kNumBlockKinds,
                        block.micro_batch)] = static_cast<int32_t>(i);
    }
    for (size_t i = 0; i < in_.memory.host_blocks.size(); ++i) {
      const schedule::Block& block = in_.memory.host_blocks[i];
      host_index_.try_emplace({block.stage, block.micro_batch}, static_cast<int32_t>(i));
    }
  }

  Program Run() {
    Program program;
    std::vector<int32_t> works;  // positions
    for (const Action& action : in_.schedule.list_of(in_.rank)) {
      Instruction& instruction = program.instructions.emplace_back();
      instruction.action = action;
      instruction.name = ToString(action);
      if (schedule::IsCollective(action.op)) {
        instruction.ranks = in_.schedule.group(action.group).ranks;
      } else {
        instruction.stage = in_.stages[static_cast<size_t>(action.stage.value())];
      }
      instruction.works = schedule::IsCompute(action.op) || schedule::IsCollective(action.op) ||
                          (action.op == Op::kStep && instruction.stage->updates_in_step());
      instruction.first_slot = program.num_slots;
      program.num_slots += action.op == Op::kExchangeNorms ? 5 : 3;
      if (instruction.works) {
        constexpr size_t kMostAhead = Instruction::kMostAhead;
        if (works.size() >= kMostAhead) {
          instruction.keeps_up_with = works[works.size() - kMostAhead];
        }
        works.push_back(position_);
      }
      if (schedule::IsCompute(action.op)) AddComputation(instruction);
      if (schedule::IsTransfer(action.op)) AddTransfer(instruction);
      if (schedule::IsHostCopy(action.op)) {
        instruction.copy_slot = program.num_copy_slots++;
        AddHostCopy(instruction);
      }
      if (action.op == Op::kRelease) {
        instruction.awaits = offloads_[Cell(action.stage, 0, 1, action.micro_batch)];
      }
      ++position_;
    }
    for (const int32_t send : last_send_) {
      if (send != Instruction::kNothing) program.last_sends.push_back(send);
    }
    return program;
  }

 private:
  size_t Cells(size_t kinds) const {
    return static_cast<size_t>(in_.schedule.num_stages()) * kinds *
           static_cast<size_t>(in_.schedule.num_micro_batches);
  }
  size_t Cell(StageId stage, size_t kind, size_t kinds, MicroBatch micro_batch) const {
    return (static_cast<size_t>(stage.value()) * kinds + kind) *
               static_cast<size_t>(in_.schedule.num_micro_batches) +
           static_cast<size_t>(micro_batch.value());
  }
  bool IsHere(StageId stage) const { return in_.schedule.rank_of(stage) == in_.rank; }

  // Returns the block if it is live at the present position.
  int32_t FindBlock(BlockKind kind, StageId stage, MicroBatch micro_batch) const {
    const int32_t index =
        block_index_[Cell(stage, static_cast<size_t>(kind), schedule::kNumBlockKinds, micro_batch)];
    if (index == Instruction::kNothing) return index;
    const schedule::Block& block = in_.memory.blocks[static_cast<size_t>(index)];
    return block.first <= position_ && position_ <= block.last ? index : Instruction::kNothing;
  }
  std::byte* AddressOf(int32_t block) const {
    if (block == Instruction::kNothing) return nullptr;
    return in_.dynamic + in_.memory.blocks[static_cast<size_t>(block)].offset;
  }

  // Between two stages of this rank there is one activation and one gradient, which both use in
  // place.
  int32_t InputOf(const Action& action) const {
    const StageId id = action.stage;
    const bool previous_here = !in_.schedule.is_first(id) && IsHere(Previous(id));
    return previous_here ? FindBlock(BlockKind::kOutput, Previous(id), action.micro_batch)
                         : FindBlock(BlockKind::kInput, id, action.micro_batch);
  }
  int32_t OutputGradientOf(const Action& action) const {
    const StageId id = action.stage;
    const bool next_here = !in_.schedule.is_last(id) && IsHere(Next(id));
    return next_here ? FindBlock(BlockKind::kInputGradient, Next(id), action.micro_batch)
                     : FindBlock(BlockKind::kOutputGradient, id, action.micro_batch);
  }

  void AddComputation(Instruction& instruction) const {
    const Action& action = instruction.action;
    const auto own = [&](BlockKind kind) {
      return FindBlock(kind, action.stage, action.micro_batch);
    };
    const int32_t input = InputOf(action);
    const int32_t output = own(BlockKind::kOutput);
    const bool is_fetched =
        fetches_[Cell(action.stage, 0, 1, action.micro_batch)] != Instruction::kNothing;
    const int32_t stash = own(is_fetched ? BlockKind::kFetchedStash : BlockKind::kStash);
    const int32_t weight_stash =
        own(is_fetched ? BlockKind::kFetchedWeightStash : BlockKind::kWeightStash);
    const int32_t gradient_stash = own(BlockKind::kGradientStash);
    instruction.blocks = {.input = AddressOf(input),
                          .output = AddressOf(output),
                          .stash = AddressOf(stash),
                          .weight_stash = AddressOf(weight_stash),
                          .gradient_stash = AddressOf(gradient_stash),
                          .output_gradient = AddressOf(OutputGradientOf(action)),
                          .input_gradient = AddressOf(own(BlockKind::kInputGradient)),
                          .workspace = in_.workspace};
    const bool completes = action.op == Op::kBackwardWeight || action.op == Op::kBackward;
    instruction.completes_gradients =
        completes && action.micro_batch.value() + 1 == in_.schedule.num_micro_batches;
    if (action.op != Op::kBackwardWeight) {
      instruction.awaits =
          receives_[Cell(action.stage, action.op == Op::kForward ? 0 : 1, 2, action.micro_batch)];
      instruction.fetch = fetches_[Cell(action.stage, 0, 1, action.micro_batch)];
    }
    if (!trains_) return;
    size_t count = 0;
    const auto keep = [&](int32_t block) {
      if (block != Instruction::kNothing) instruction.stashes[count++] = block;
    };
    if (action.op == Op::kForward) {
      const schedule::StageMemory& memory = instruction.stage->memory();
      keep(stash);
      keep(weight_stash);
      if (memory.input_last_use != LastUse::kForward) keep(input);
      if (memory.output_last_use != LastUse::kForward) keep(output);
    } else if (action.op == Op::kBackwardInput) {
      keep(gradient_stash);
    }
  }

  void AddTransfer(Instruction& instruction) {
    const Action& action = instruction.action;
    const bool forward = schedule::ComputeOf(action.op) == Op::kForward;
    const bool sends = schedule::IsSend(action.op);
    const schedule::StageMemory& memory = instruction.stage->memory();
    BlockKind kind = BlockKind::kInput;
    int64_t bytes = memory.input_bytes;
    if (sends) {
      kind = forward ? BlockKind::kOutput : BlockKind::kInputGradient;
      bytes = forward ? memory.output_bytes : memory.input_gradient_bytes;
    } else if (!forward) {
      kind = BlockKind::kOutputGradient;
      bytes = memory.output_gradient_bytes;
    }
    std::byte* const data = AddressOf(FindBlock(kind, action.stage, action.micro_batch));
    // Elements of every activation type are a multiple of 2 bytes; to a transport, they are just
    // bytes.
    instruction.tensor = {data, kernels::DType::kBfloat16, Shape{bytes / 2}};
    instruction.peer = PeerOf(in_.schedule, action);
    instruction.message = {.kind = forward ? Message::Kind::kActivation : Message::Kind::kGradient,
                           // Names the earlier of the two stages.
                           .stage = forward == sends ? action.stage : Previous(action.stage),
                           .micro_batch = action.micro_batch};
    const size_t lane = forward ? 0 : 1;
    if (sends) {
      instruction.awaits = std::exchange(
          last_send_[2 * static_cast<size_t>(action.stage.value()) + lane], position_);
    } else {
      receives_[Cell(action.stage, lane, 2, action.micro_batch)] = position_;
    }
  }

  void AddHostCopy(Instruction& instruction) {
    const Action& action = instruction.action;
    const bool leaves = action.op == Op::kOffload;
    (leaves ? offloads_ : fetches_)[Cell(action.stage, 0, 1, action.micro_batch)] = position_;
    const auto found = host_index_.find({action.stage, action.micro_batch});
    if (found == host_index_.end()) return;  // it keeps nothing
    const std::vector<schedule::Block>& blocks = in_.memory.host_blocks;
    for (auto i = static_cast<size_t>(found->second);
         i < blocks.size() && blocks[i].stage == action.stage &&
         blocks[i].micro_batch == action.micro_batch;
         ++i) {
      const bool is_stash = blocks[i].kind == BlockKind::kStash;
      const BlockKind fetched =
          is_stash ? BlockKind::kFetchedStash : BlockKind::kFetchedWeightStash;
      const int32_t block =
          FindBlock(leaves ? blocks[i].kind : fetched, action.stage, action.micro_batch);
      std::byte* const here = AddressOf(block);
      std::byte* const there = in_.host + blocks[i].offset;
      if (!leaves) instruction.stashes.at(instruction.num_copies) = block;
      instruction.copies.at(instruction.num_copies++) = {
          .to = leaves ? there : here, .from = leaves ? here : there, .bytes = blocks[i].bytes};
    }
  }

  const ProgramInputs& in_;
  const bool trains_;
  int32_t position_ = 0;
  std::vector<int32_t> block_index_;  // index: stage, kind, micro-batch
  std::vector<int32_t> receives_;  // positions; index: stage, activation or gradient, micro-batch
  std::vector<int32_t> offloads_, fetches_;  // positions so far; index: stage, micro-batch
  std::vector<int32_t> last_send_;           // positions; index: stage, activation or gradient
  // The first host block of a stash.
  absl::flat_hash_map<std::pair<StageId, MicroBatch>, int32_t> host_index_;
};

}  // namespace

Program Compile(const ProgramInputs& inputs) { return Compiler(inputs).Run(); }

}  // namespace stagecoach::engine
