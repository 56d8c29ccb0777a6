#ifndef STAGECOACH_ENGINE_DATA_ENCODING_H_
#define STAGECOACH_ENGINE_DATA_ENCODING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecoach::engine {

// Describes how the samples of a training set were turned into what a model is fed and learns to
// tell apart. Saved with the model, it encodes samples that the model has not seen in the same way
// (LoadSamples).
struct DataEncoding {
  // A value v is fed as (v - mean) / stddev, or as 0 if stddev is 0. There is one of each for every
  // feature of a table (0 and 1 for a text's); one for all pixels of images, on the scale where
  // white is 1; none for values that are fed unchanged.
  std::vector<double> mean, stddev;
  std::vector<std::string> columns;  // the names of a table's columns; none for images
  // The texts of each column, sorted, which are a feature each: 1 where a row has it, and otherwise
  // 0. None for a column of numbers; empty if all are. A text that is not among them is 0 in all.
  std::vector<std::vector<std::string>> categories;
  std::vector<std::string> dropped_columns;  // of a table, which are no features
  std::vector<std::string> class_names;      // by label; none if classes are called 0, 1, 2, ...
  // For labels that are numbers, of which a sample has one or several: v is learned as (v -
  // label_mean) / label_stddev, and an output y stands for NumberOf(y). None: labels are classes.
  std::vector<double> label_mean, label_stddev;
  std::vector<std::string> label_names;  // the columns of several; none for one
  // Vocabulary size of sequences of tokens; each id is a byte of text or a token of some tokenizer.
  // 0: other data.
  int64_t vocabulary = 0;
  bool tokens_are_bytes = false;
  // True if each epoch of the training has cut them into rows at other places (Dataset::ForEpoch).
  bool rows_move = false;
  std::string tokenizer;  // its hash (engine/data/tokenizer/tokenizer.h); "": unknown

  bool labels_are_numbers() const { return !label_stddev.empty(); }
  double NumberOf(double output, size_t label = 0) const {
    return output * label_stddev[label] + label_mean[label];
  }
  double Standardized(double number, size_t label = 0) const {
    return (number - label_mean[label]) / label_stddev[label];
  }

  // Returns the name of a label's class.
  std::string NameOf(int64_t label) const;

  // Returns whether samples become the same numbers: all but rows_move is equal.
  bool EncodesAs(const DataEncoding& other) const;

  friend bool operator==(const DataEncoding&, const DataEncoding&) = default;
};

// Tells data apart from other data, or from what it was: a fingerprint of the samples read, not of
// files (FingerprintOf in engine/data/data_fingerprint.h). "": unknown.
struct DataFingerprint {
  std::string train, test;

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_ENCODING_H_
