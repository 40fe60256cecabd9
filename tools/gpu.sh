#!/usr/bin/env bash
# Check and measure the package on a GPU, also on a machine without a network.
#
#   bash tools/gpu.sh OUT [--wheels FOLDER] [--python PYTHON] [--] [STAGE [options of tools/gpu_checks.py]]
#
#   bash tools/gpu.sh results                                  # all stages within nine minutes
#   bash tools/gpu.sh results --wheels wheels correctness --minutes 8 --jobs 3
#
# OUT gets gpu.jsonl (a line for each check, as soon as it is done), gpu.log and gpu.md (the report). FOLDER holds wheels that
# the machine lacks, see tools/gpu_wheels.py; they are installed into a temporary folder. Further runs append to gpu.jsonl.
set -uo pipefail
if [ $# -lt 1 ] || [ "${1:0:1}" = "-" ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
fi
repository=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
shift
wheels="" python=python3
while [ $# -gt 0 ]; do
    case $1 in
        --wheels) wheels=$2; shift 2 ;;
        --python) python=$2; shift 2 ;;
        --) shift; break ;;
        *) break ;;
    esac
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
path=$repository
if [ -n "$wheels" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$scratch/site" "$wheels"/*.whl || exit 2
    path=$scratch/site:$path
fi
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
[ $# -gt 0 ] || set -- all --minutes 9 --jobs 4
"$python" "$repository/tools/gpu_checks.py" "$@" --out "$out/gpu.jsonl"
status=$?
"$python" "$repository/tools/gpu_checks.py" report "$out/gpu.jsonl" > "$out/gpu.md"
exit $status
