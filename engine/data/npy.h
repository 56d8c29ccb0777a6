#ifndef STAGECOACH_ENGINE_DATA_NPY_H_
#define STAGECOACH_ENGINE_DATA_NPY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// An array in NumPy's format .npy, versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): the bytes 93 "NUMPY",
// two bytes for the version, the length of the header as a little-endian uint16 (1.0) or uint32,
// the header, a Python dictionary with the keys "descr", "fortran_order" and "shape", padded with
// spaces and a line end, and then the elements.
struct NpyArray {
  std::string type;            // its "descr": "<u2"
  std::vector<int64_t> shape;  // empty for a single element
  bool is_fortran = false;     // the first index varies fastest, not the last
  int64_t count = 0;           // of elements; 2^63 - 1 if there are more
  absl::string_view elements;  // everything after the header
};

// Reads the header of an array in `contents`, which `name` names in errors. The elements are not
// read, nor is their number checked. DataLoss: the header is truncated. InvalidArgument: it is
// malformed.
absl::StatusOr<NpyArray> ParseNpy(const std::string& name, absl::string_view contents);

// Returns "(2, 3)", "(2,)" or "()", as NumPy writes it.
std::string NpyShape(absl::Span<const int64_t> shape);

// Returns DataLoss unless `elements`, which follow the header in `name`, are `count` elements of
// `element_bytes` each.
absl::Status CheckElements(const std::string& name, absl::string_view elements, int64_t count,
                           size_t element_bytes);

// Returns what precedes the elements of a one-dimensional array, in version 1.0: 128 bytes for any
// count.
std::string FormatNpyHeader(absl::string_view type, int64_t count);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_NPY_H_
