#include "engine/data/tokenizer/sentencepiece/model.h"

#include <sentencepiece_processor.h>

namespace stagecoach::engine {

struct SentencePieceModel::Processor {
  sentencepiece::SentencePieceProcessor library;
};

SentencePieceModel::SentencePieceModel() : processor_(std::make_unique<Processor>()) {}
SentencePieceModel::~SentencePieceModel() = default;

bool SentencePieceModel::Load(std::string_view contents) {
  return processor_->library.LoadFromSerializedProto(contents).ok();
}

bool SentencePieceModel::Encode(std::string_view text, std::vector<int32_t>& ids) const {
  return processor_->library.Encode(text, &ids).ok();
}

int32_t SentencePieceModel::size() const { return processor_->library.GetPieceSize(); }
std::string SentencePieceModel::Piece(int32_t id) const {
  return processor_->library.IdToPiece(id);
}
bool SentencePieceModel::IsControl(int32_t id) const { return processor_->library.IsControl(id); }
bool SentencePieceModel::IsUnknown(int32_t id) const { return processor_->library.IsUnknown(id); }
bool SentencePieceModel::IsByte(int32_t id) const { return processor_->library.IsByte(id); }
int32_t SentencePieceModel::end_of_text() const { return processor_->library.eos_id(); }

}  // namespace stagecoach::engine
