"""What torch_axon finds on this machine, which paths its ranks take, and what stands in their way.

    python -m torch_axon.doctor                                   # this machine: two ranks, or one a GPU
    torchrun --nproc-per-node=8 -m torch_axon.doctor [--json]     # the job as it will be started

Rank 0 prints; the exit status is not 0 where jobs will fail. docs/observing.md explains the report.
"""
