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
grep -vE "Skipped|^needs" "$results/tests.log" | tail -n 25
CUDA_DEVICE_MAX_CONNECTIONS=1 step tests_one_connection 60 "$binaries/device_tests" --gtest_brief=1 \
  --gtest_filter='*gpu_each_*'
grep -vE "Skipped|^needs" "$results/tests_one_connection.log" | tail -n 5
for tool in "memcheck --report-api-errors no" racecheck; do
  # shellcheck disable=SC2086  # the tool's options are words of their own
  step "${tool%% *}" 60 compute-sanitizer --tool $tool "$binaries/device_tests" --gtest_brief=1 \
    --gtest_filter='*in_place*gpu_each_2:*any_grid*gpu_each_2:*times_out*gpu_each_2:*mismatch*gpu_each_2'
  tail -n 4 "$results/${tool%% *}.log"
done
for ranks in $(printf '2\n%s\n' "$num_gpus" | sort -nu); do
  step "bench_$ranks" 100 "$binaries/packet_bench" "$ranks"
  step "torch_$ranks" 120 torchrun --standalone --nproc-per-node "$ranks" "$here/compare_torch.py"
  grep -hE '^\S*error' -i "$results/torch_$ranks.log" | head -n 3
  cat "$results/bench_$ranks.log" "$results/torch_$ranks.log" | grep '^{' >"$results/times_$ranks.jsonl"
  python3 "$here/table.py" "$results/times_$ranks.jsonl"
done
rm -f "$results"/torch_*.log
