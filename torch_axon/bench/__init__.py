"""Benchmark of the backend against another one, side by side in one run.

``torchrun --nproc-per-node=2 -m torch_axon.bench all_reduce --sizes 8:128M:x2 --vs gloo,fake`` prints nccl-tests'
columns for both sides and their ratio. ``benchmarks/README.md`` describes what is timed and the format of result files.

There is one module per step:

- `arguments` reads the command line
- `operations` is the table of measurable operations
- `contenders` opens the groups
- `measure` times them in turn
- `record` is a record of a result file
- `report`, `terminal` and `plot` show records

`cost` measures groups themselves. `beside` measures how calls and a matrix product slow each other down. For it,
`loops` runs them, `kernels` finds what a call launches, and `beside_record` is the record.
"""
