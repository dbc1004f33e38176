#!/usr/bin/env bash
# Every GPU kernel on a real device: correctness, speed, one generation. Under 4 minutes on an H200; prints one table.
#
#   benchmarks/gpu_check.sh [--device cuda|cpu] [--seconds 220]
#
# With --device cpu the same checks run in Triton's interpreter, without the timings: it tests this script.
# Tables and figures are also written to $OUT when that is set. Python packages that the machine lacks may lie as pure
# wheels in wheels/ (see docs/gpu.md).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
WHEELS="$(find wheels -name '*.whl' 2>/dev/null | tr '\n' ':' || true)"
export PYTHONPATH=".:tests/support:${WHEELS}${PYTHONPATH:-}"
export OMP_WAIT_POLICY=passive
for argument in "$@"; do
  if [ "$argument" = cpu ]; then export TRITON_INTERPRET=1 OCTAVO_KERNELS=interpret; fi
done
exec "$PYTHON" benchmarks/gpu_check "$@"
