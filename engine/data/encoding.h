#ifndef STAGECOACH_ENGINE_DATA_ENCODING_H_
#define STAGECOACH_ENGINE_DATA_ENCODING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace stagecoach::engine {

// How the samples of a training set were turned into what a model is fed with and learns to tell.
// Saved with the model, it turns samples that the model has not seen into the same (LoadSamples).
struct DataEncoding {
  // A value v is fed as (v - mean) / stddev; where stddev is 0, as 0. One of each for every feature
  // of a table; one for all pixels of images, on the scale where white is 1; none for values that
  // are fed as they are.
  std::vector<double> mean, stddev;
  std::vector<std::string> columns;      // the names of a table's features; none for images
  std::vector<std::string> class_names;  // by label; none where classes are called 0, 1, 2, ...
  // Of labels that are numbers: v is learned as (v - label_mean) / label_stddev, and an output y
  // stands for NumberOf(y). A label_stddev of 0: labels are classes.
  double label_mean = 0.0, label_stddev = 0.0;
  // Of sequences of tokens: ids are below it, and each is a byte of text or what some tokenizer
  // calls it. 0: of other data.
  int64_t vocabulary = 0;
  bool tokens_are_bytes = false;
  // Whether each epoch of the training has cut them into rows elsewhere (Dataset::ForEpoch).
  bool rows_move = false;
  std::string tokenizer;  // which one, by its hash (engine/data/tokenizer/tokenizer.h); "": unknown

  bool labels_are_numbers() const { return label_stddev > 0.0; }
  double NumberOf(double output) const { return output * label_stddev + label_mean; }
  double Standardized(double number) const { return (number - label_mean) / label_stddev; }

  // What the class of a label is called.
  std::string NameOf(int64_t label) const;

  // Whether samples become the same numbers: all but rows_move is equal.
  bool EncodesAs(const DataEncoding& other) const;

  friend bool operator==(const DataEncoding&, const DataEncoding&) = default;
};

// What tells data apart from others, or from what they were: of what is read, not of files
// (FingerprintOf in engine/data/data_fingerprint.h). "": it is not known.
struct DataFingerprint {
  std::string train, test;

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_ENCODING_H_
