#ifndef STAGECOACH_ENGINE_DATA_NPY_H_
#define STAGECOACH_ENGINE_DATA_NPY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

// A one-dimensional array in NumPy's format .npy, versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): the bytes 93 "NUMPY",
// two bytes for the version, the length of the header as a little-endian uint16 (1.0) or uint32,
// the header, a Python dictionary of the keys "descr", "fortran_order" and "shape", ended by spaces
// and a line end, and then the elements.
struct NpyArray {
  std::string type;            // as its "descr" names it: "<u2"
  int64_t count = 0;           // of elements
  absl::string_view elements;  // all that is behind the header
};

// Reads the header of an array in `contents`, which `name` names in errors. The elements are not
// looked at, nor is it checked that there are as many as it says. DataLoss: the header is
// truncated. InvalidArgument: it is malformed, or the array is not one-dimensional.
absl::StatusOr<NpyArray> ParseNpy(const std::string& name, absl::string_view contents);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_NPY_H_
