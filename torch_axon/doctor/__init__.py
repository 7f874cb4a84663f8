"""Reports what torch_axon finds on this machine, which paths the ranks use, and why no faster ones.

    python -m torch_axon.doctor                                   # this machine: two ranks, or one per GPU
    torchrun --nproc-per-node=8 -m torch_axon.doctor [--json]     # the job as it will be started

Rank 0 prints the report. The exit status is not 0 if jobs will fail. docs/observing.md explains the report.
"""
