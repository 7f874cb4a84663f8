"""Benchmark of the backend against another one, side by side in one run.

``torchrun --nproc-per-node=2 -m torch_axon.bench all_reduce --sizes 8:128M:x2 --vs gloo,fake`` prints nccl-tests'
columns for both sides and their ratio. ``benchmarks/README.md`` says what is timed and how the result files look.

One module a step: `arguments` reads the command line, `operations` is the table of what can be measured, `contenders`
opens the groups, `measure` times them in turn, `record` is a line of a result file, `report`, `terminal` and `plot`
show lines. Instead, `cost` measures what groups themselves cost, and `beside` what calls and a matrix product cost each
other: `loops` runs them, `kernels` reads off the profiler what a call launches, `beside_record` is a line of it.
"""
