#!/bin/bash
# Runs everything that needs a GPU, in one command on a host with GPUs and without a network.
#
#   benchmarks/cuda/run_on_gpu_host.sh BUNDLE RESULTS [STEP…]
#
# BUNDLE is the output of `make gpu-bundle` in build/gpu-bundle. It contains the wheels of torch_axon, libucx and
# expecttest (for the steps upstream_*), and a file `commit` that names the build. Its bin/ has the compressed C++ tests
# (*_test) and benchmarks (*_bench). These link cudart statically, so that they run on another host, and find UCX in its
# wheel.
# Without STEPs all steps run, in the order of the table below, until DEADLINE (default 520) seconds have passed. Each
# step has its own deadline. log.txt, JSON lines and plots are written to RESULTS; the ends of failed steps' logs and a
# table go to stdout.
#
#   TORTURE=100000       operations of the step torture
#   SOAK_MINUTES         length of the soak
#   FAULT_ROUNDS         how often ranks fail and regroup in the step faults
#   FAULTS               which faults these are (as pytest's -k)
#   INTERRUPT_ROUNDS     how often a rank is interrupted (Ctrl-C) in the step interrupts
#   JOBS                 how many of upstream's tests run at a time
#   UPSTREAM_LIMIT       for how many seconds they run
#   UPSTREAM_REST=1      runs only those that the committed results lack
#   SIZES, OPERATIONS    sizes and operations of the benchmark
#   SHAPES               shapes of overlap
set -u
bundle=$(realpath "$1")
mkdir -p "$2"
results=$(realpath "$2")
shift 2
wanted=" $* "
here=$(realpath "$(dirname "$0")")
tests=$here/../../tests/python
scratch=$(mktemp -d)
programs=$scratch/bin
deadline=$((SECONDS + ${DEADLINE:-520}))
num_gpus=$(nvidia-smi -L | wc -l)
commit=$(cat "$bundle/commit" 2>/dev/null || echo unknown)
export programs results here tests commit
table=()

# Multicast can disable a host's GPUs if they are shared.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
export PYTHONPATH=$scratch/site OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
cd "$scratch" || exit 1  # not the sources, whose torch_axon is not built

step() { # step NAME SECONDS COMMAND…
  local name=$1 seconds=$2 left=$((deadline - SECONDS))
  shift 2
  [[ $wanted == "  " || $wanted == *" $name "* ]] || return 0
  if ((left < 10)); then
    table+=("$(printf '%-22s no time left' "$name")")
    return 0
  fi
  local began=$SECONDS log=$scratch/$name.log status=0
  timeout -k 10 $((seconds < left ? seconds : left)) bash -c '"$@"' step "$@" >"$log" 2>&1 || status=$?
  { echo "=== $name: $*"; cat "$log"; } >>"$results/log.txt"
  ((status == 0)) || { echo "=== $name: exit status $status"; tail -n 40 "$log" | cut -c1-300; }
  table+=("$(printf '%-22s %4s %4d s  %s' "$name" "$( ((status)) && echo "$status" || echo ok)" $((SECONDS - began)) \
    "$(grep -vE '^\s*$' "$log" | tail -n 1 | cut -c1-90)")")
}

all_of() {  # all_of SUFFIX ARGUMENT…: runs the bundle's programs with this suffix, one after the other
  local suffix=$1 status=0 program
  shift
  for program in "$programs"/*"$suffix"; do
    echo "--- $(basename "$program")"
    LD_LIBRARY_PATH=$PYTHONPATH/libucx/lib "$program" "$@" || status=1
  done
  return $status
}

sanitize() { # sanitize TOOL [OPTION…]: the kernels' own tests
  compute-sanitizer --tool "$@" --error-exitcode 9 "$programs/gpu_test" --gtest_brief=1 --gtest_filter="${SANITIZED:-\
*in_place*gpu_each_2*:*any_grid*gpu_each_2*:*mismatch*gpu_each_2*:*uneven*gpu_each_2*:*ZeroCopyMessages*gpu_each_2*}"
}

python_tests() {  # python_tests SELECTION FILE…: in any folder; on GPUs only
  local selection=$1 file files=()
  shift
  for file; do files+=("$tests"/*/"$file"); done
  python3 -m pytest -vv -p no:cacheprovider -m gpu -k "$selection" --tb=short "${files[@]}"
}

faults() { # faults SELECTION ROUNDS [OPTION…]: of tests/fault, all on GPUs
  python3 -m pytest -vv -p no:cacheprovider -m gpu -k "$1" --all-faults --fault-rounds "$2" "${@:3}" \
    --faults-json "$results/faults.jsonl" --faults-commit "$commit" --tb=short --timeout 120 "$tests/../fault"
}

soak() { # soak: random operations and faults, on all GPUs
  python3 "$tests/../soak" --device cuda --minutes "${SOAK_MINUTES:-3}" --commit "$commit" --json "$results/soak.jsonl"
}

upstream() { # upstream RANKS: PyTorch's own tests of backends
  python3 "$tests/../upstream/report.py" --gpus "$1" --jobs "${JOBS:-6}" --limit "${UPSTREAM_LIMIT:-300}" \
    ${UPSTREAM_REST:+--rest} --results "$results"
}

bench() { # bench RANKS eager|graph
  local graph=()
  [[ $2 == graph ]] && graph=(--graph)
  torchrun --standalone --nproc-per-node "$1" -m torch_axon.bench \
    "${OPERATIONS:-all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,ring}" --device cuda "${graph[@]}" \
    --vs nccl,symm_mem --dtype bfloat16 --sizes "${SIZES:-8,1K,8K,32K,128K,512K,1M,4M,16M,64M,256M,1G}" \
    --seconds 0.05 --commit "$commit" --json "$results/bench.jsonl" --plot "$results/bench_$1_$2.png"
}

costs() { # costs RANKS
  torchrun --standalone --nproc-per-node "$1" -m torch_axon.bench --groups 10 --device cuda --vs nccl \
    --commit "$commit" --json "$results/costs.jsonl"
}

host() { # host RANKS
  torchrun --standalone --nproc-per-node "$1" -m torch_axon.bench all_reduce --device cuda --host \
    --vs nccl,fake,launch --dtype bfloat16 --sizes 8,1K,64K,1M --commit "$commit" --json "$results/host.jsonl"
}

beside() { # beside RANKS; with fewer connections than streams, streams wait for each other
  CUDA_DEVICE_MAX_CONNECTIONS=32 torchrun --standalone --nproc-per-node "$1" -m torch_axon.bench \
    all_reduce,all_gather --device cuda --beside --vs nccl --dtype bfloat16 --sizes 1M,16M,256M \
    --blocks 4 --commit "$commit" --json "$results/beside.jsonl"
}

overlap() { # overlap RANKS
  torchrun --standalone --nproc-per-node "$1" "$here/overlap.py" --shapes "${SHAPES:-quick}" --commit "$commit" \
    --json "$results/overlap.jsonl" --plot "$results/overlap_$1.png" --trace "$results/overlap_$1_trace.json"
}

tiles() {  # tiles RANKS: the data of csrc/fused/matmul/tile_choice.cpp
  torchrun --standalone --nproc-per-node "$1" "$here/tiles.py" --commit "$commit" --json "$results/tiles.jsonl"
}

llama() { # llama RANKS [--compile]
  torchrun --standalone --nproc-per-node "$1" "$here/llama_step.py" "${@:2}" --commit "$commit" \
    --json "$results/llama.jsonl"
}

kernels() { # kernels RANKS
  all_of _bench "$1" | tee >(grep '^{' >>"$results/kernels.jsonl")
  python3 "$here/table.py" "$results/kernels.jsonl"
}

export -f all_of sanitize python_tests faults soak upstream bench costs host beside overlap tiles llama kernels

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
mkdir "$programs"
for packed in "$bundle"/bin/*.xz; do
  program=$programs/$(basename "$packed" .xz)
  xz -dc "$packed" >"$program" && chmod +x "$program" || exit 1
done
python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$scratch/site" "$bundle"/*.whl || exit 1
python3 -c 'import torch_axon._native as n; n.load(); print("torch_axon", n._build.VERSION, "loads")' || exit 1

few='not staged and not one_connection and not 3ranks and not 4ranks'
all_steps() {
  local forking='*DeviceGroup*Test*:*RegistrationsTest*' # before this process uses CUDA
  step cpp_processes 240 all_of _test --gtest_brief=1 --gtest_filter="$forking"
  step cpp 240 all_of _test --gtest_brief=1 --gtest_filter="-$forking"
  CUDA_DEVICE_MAX_CONNECTIONS=1 step cpp_one_connection 60 all_of _test --gtest_brief=1 --gtest_filter='*gpu_each_*'
  step memcheck 90 sanitize memcheck --report-api-errors no
  step racecheck 90 sanitize racecheck
  step synccheck 90 sanitize synccheck
  step operations 120 python_tests "$few" test_reductions.py test_movements.py test_point_to_point.py test_groups.py
  step streams 120 python_tests "$few" test_cuda_streams.py
  step graphs 120 python_tests "$few" test_cuda_graphs.py
  step segments 150 python_tests "$few" test_cuda_segments.py test_registered_memory.py test_suspension.py
  step failures 240 python_tests "$few" test_cuda_failures.py test_mismatches.py test_timeouts.py test_deaths.py \
    test_work.py
  step settings 120 python_tests "$few" test_cuda_settings.py test_cuda_memory.py test_hosts.py test_pool.py
  step fused 240 python_tests "$few" test_fused.py test_fused_arguments.py test_fused_composition.py \
    test_fused_float8.py test_fused_gradients.py test_cuda_fused.py test_tensor_parallel.py
  step fused_failures 240 python_tests "$few" test_cuda_fused_failures.py
  step training 240 python_tests "$few" test_cuda_training.py test_training.py test_clients.py \
    test_cuda_clients.py test_examples.py
  PYTEST_ADDOPTS=${TORTURE:+--torture-operations=$TORTURE} step torture 400 python_tests "$few" test_torture.py
  step runtime 150 python_tests test test_cuda_runtime.py
  step faults 500 faults "${FAULTS:-test}" "${FAULT_ROUNDS:-30}"
  step interrupts 400 faults rounds "${INTERRUPT_ROUNDS:-100}" --round-fault interrupt
  step soak 400 soak
  step upstream_2 370 upstream 2
  step bench_2_graph 200 bench 2 graph
  step bench_2_eager 200 bench 2 eager
  step costs_2 100 costs 2
  step host_2 60 host 2
  step beside_2 150 beside 2
  step overlap_2 150 overlap 2
  step tiles 300 tiles 2
  step llama_2 150 llama 2
  step llama_2_compiled 300 llama 2 --compile
  step kernels_2 100 kernels 2
  step operations_4 200 python_tests "${few/ and not 4ranks/ and 4ranks}" test_reductions.py test_movements.py \
    test_point_to_point.py test_groups.py
  step cuda_4 300 python_tests "${few/ and not 4ranks/ and 4ranks}" test_cuda_streams.py test_cuda_graphs.py test_cuda_segments.py \
    test_cuda_settings.py test_cuda_training.py test_mismatches.py test_torture.py
  step staged 300 python_tests "staged and not 3ranks and not 4ranks" test_reductions.py test_movements.py \
    test_point_to_point.py test_cuda_streams.py test_cuda_failures.py test_cuda_training.py test_cuda_settings.py \
    test_cuda_memory.py test_torture.py
  step one_connection 120 python_tests "one_connection and not 3ranks and not 4ranks" test_cuda_streams.py
  step odd 300 python_tests "3ranks and not staged and not one_connection" test_reductions.py test_movements.py \
    test_point_to_point.py test_cuda_graphs.py test_torture.py
  step bench_tests 200 python_tests test test_bench.py
  step fused_4 240 python_tests "4ranks or 3ranks" test_fused.py test_cuda_fused.py
  if ((num_gpus >= 4)); then
    step upstream_4 370 upstream 4
    step bench_4_graph 200 bench 4 graph
    step bench_4_eager 200 bench 4 eager
    step costs_4 100 costs 4
    step host_4 60 host 4
    step beside_4 150 beside 4
    step overlap_4 150 overlap 4
    step llama_4 150 llama 4
    step kernels_4 100 kernels 4
  fi
}
all_steps

for file in bench host; do
  [[ -s $results/$file.jsonl ]] && python3 -m torch_axon.bench.report "$results/$file.jsonl" >>"$results/tables.md"
done
printf '%s\n' "" "$commit on $num_gpus GPUs" "${table[@]}"
rm -rf "$scratch"
