#ifndef STAGECOACH_TOOLS_STAGECOACH_PREDICT_CONFUSION_TABLE_H_
#define STAGECOACH_TOOLS_STAGECOACH_PREDICT_CONFUSION_TABLE_H_

#include <string>

#include "engine/data/encoding.h"
#include "engine/session/predict/confusion.h"

namespace stagecoach::tools {

// Returns a table with a row for each class that occurs: its accuracy, and how often it was taken
// for each class or, if that would be wider than `columns`, for which class most often by mistake.
std::string ConfusionTable(const engine::Confusion& confusion, const engine::DataEncoding& encoding,
                           int columns);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_PREDICT_CONFUSION_TABLE_H_
