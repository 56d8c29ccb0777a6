#!/usr/bin/env bash
# Holds tools/check_layering, the script given as argument, to accepting what the design allows and refusing what it does not.
set -euo pipefail

script=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0

# expect accepts|refuses FILE INCLUDE: of a tree with nothing but a file with that #include.
expect() {
  local verdict=accepts
  rm -rf "${tree:?}"/*
  mkdir -p "$tree/$(dirname "$2")"
  echo "#include $3" >"$tree/$2"
  "$script" "$tree" >"$tree/output" 2>&1 || verdict=refuses
  if [[ $verdict != "$1" ]]; then
    echo "$2 with #include $3: expected that it $1; it $verdict" >&2
    cat "$tree/output" >&2
    failures=$((failures + 1))
  elif [[ $verdict == refuses ]] && ! grep -q "^$2:1: includes" "$tree/output"; then
    echo "$2 with #include $3: the message does not name the file and line:" >&2
    cat "$tree/output" >&2
    failures=$((failures + 1))
  fi
}

expect accepts kernels/device.h '"base/system/file.h"'
expect accepts partition/plan/plan.cc '"schedule/ir/schedule.h"'
expect accepts engine/nn/layer.h '"kernels/tensor.h"'
expect accepts engine/train/trainer.cc '"engine/runtime/executor.h"'
expect accepts engine/runtime/executor.h '"engine/comm/transport.h"'
expect accepts tools/stagecoach/main.cc '"engine/train/trainer.h"'
expect accepts tests/engine/train/trainer_test.cc '"tests/testing/status_matchers.h"'
expect accepts base/system/file.cc '"absl/status/status.h"'
expect accepts base/system/file.cc '<vector>'
expect accepts kernels/cuda/device.cu '<cuda_runtime.h>'

expect refuses base/system/file.h '"kernels/device.h"'
expect refuses kernels/device.cc '"schedule/ir/action.h"'
expect refuses schedule/ir/schedule.h '"partition/plan/plan.h"'
expect refuses partition/plan/plan.cc '"kernels/tensor.h"'
expect refuses engine/nn/layers/linear.cc '"engine/runtime/stage/stage.h"'
expect refuses engine/runtime/stage/stage.h '"engine/runtime/executor.h"'
expect refuses engine/runtime/stage/stage.cc '"engine/comm/transport.h"'
expect refuses engine/runtime/executor.cc '"engine/train/trainer.h"'
expect refuses engine/comm/in_process.cc '"engine/runtime/executor.h"'
expect refuses engine/train/fit.cc '"tools/stagecoach/train/report.h"'
expect refuses kernels/device.cc '"tests/testing/close_to.h"'
expect refuses novel/thing.cc '"base/system/file.h"'
expect refuses base/system/file.cc '  "kernels/device.h"  // spaces and a comment hide nothing'
expect refuses kernels/device.h '<cuda_runtime.h>'
expect refuses engine/comm/transport.h '<nccl.h>'
expect refuses kernels/device.h '"kernels/cuda/scalar.cuh"'
expect refuses partition/exact/chain.h '"partition/evaluate/cut_evaluator.h"'
expect refuses kernels/cuda/runtime/handles.cc '"kernels/cuda/ops/cuda_ops.h"'
expect refuses engine/data/feed.h '"engine/nn/layer.h"'
expect refuses engine/new_room/thing.h '"tools/stagecoach/train/report.h"'

# Two rooms that include each other.
rm -rf "${tree:?}"/*
mkdir -p "$tree/kernels/ops"
echo '#include "kernels/device.h"' >"$tree/kernels/ops/linear.h"
echo '#include "kernels/ops/linear.h"' >"$tree/kernels/device.h"
sed 's#\[kernels\]="$base kernels"#[kernels]="$base kernels kernels/ops"#' "$script" >"$tree/check"
if bash "$tree/check" "$tree" >"$tree/output" 2>&1 || ! grep -q "includes kernels.*; one of the two must not" "$tree/output"; then
  echo "two rooms that include each other:" >&2
  cat "$tree/output" >&2
  failures=$((failures + 1))
fi

# A folder with more files than fit in a room.
rm -rf "${tree:?}"/*
mkdir -p "$tree/kernels/ops"
echo '#include "kernels/device.h"' >"$tree/kernels/ops/linear.h"
touch "$tree/kernels/ops/"{2..32}.h
"$script" "$tree" >/dev/null 2>&1 || { echo "32 files: refused" >&2; failures=$((failures + 1)); }
touch "$tree/kernels/ops/33.h"
if "$script" "$tree" >"$tree/output" 2>&1 || ! grep -q "^kernels/ops: has 33 of its own" "$tree/output"; then
  echo "33 files in a folder:" >&2
  cat "$tree/output" >&2
  failures=$((failures + 1))
fi

((failures == 0))
