#!/bin/bash
# Everything that needs a GPU, in one go on a host that has some: device tests, sanitizer, benchmark, the sides to beat.
#
#   benchmarks/cuda/run_on_gpu_host.sh BINARIES RESULTS
#
# BINARIES holds device_tests and packet_bench, linked statically against cudart so that they run where they were not built.
# Each step has a deadline; logs and JSON lines go to RESULTS, a table to stdout.
set -u
binaries=$1 results=$2
here=$(dirname "$0")
mkdir -p "$results"
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
num_gpus=$(nvidia-smi -L | wc -l)

step() {  # step NAME SECONDS COMMAND…: its output to NAME.log
  local name=$1 seconds=$2
  shift 2
  local began=$SECONDS
  timeout "$seconds" "$@" >"$results/$name.log" 2>&1
  echo "$name: exit status $? after $((SECONDS - began)) s"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
step tests 100 "$binaries/device_tests" --gtest_brief=1
tail -n 25 "$results/tests.log"
CUDA_DEVICE_MAX_CONNECTIONS=1 step tests_one_connection 60 "$binaries/device_tests" --gtest_brief=1 \
  --gtest_filter='*gpu_each_*'
tail -n 3 "$results/tests_one_connection.log"
for tool in memcheck racecheck; do
  step $tool 60 compute-sanitizer --tool $tool "$binaries/device_tests" --gtest_brief=1 \
    --gtest_filter='*in_place*gpu_each_2:*any_grid*gpu_each_2:*times_out*gpu_each_2:*mismatch*gpu_each_2'
  tail -n 4 "$results/$tool.log"
done
step bench 100 "$binaries/packet_bench"
grep '^{' "$results/bench.log" >"$results/bench.jsonl"
step torch 120 torchrun --standalone --nproc-per-node "$num_gpus" "$here/compare_torch.py"
grep '^{' "$results/torch.log" >"$results/torch.jsonl"
grep -iE '^\S*error' "$results/torch.log" | head -n 3
python3 "$here/table.py" "$results/bench.jsonl" "$results/torch.jsonl"
