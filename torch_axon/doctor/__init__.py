"""Reports what torch_axon finds on this machine, which paths the ranks use, and why no faster ones.

    python -m torch_axon.doctor                                   # this machine: two ranks, or one per GPU
    torchrun --nproc-per-node=8 -m torch_axon.doctor [--json]     # the job as it will be started
    python -m torch_axon.doctor --ps [--json]                     # running jobs: which rank is in which call
    python -m torch_axon.doctor --attach PID [--json]             # the job of one process

Rank 0 prints the report. The exit status is not 0 if jobs will fail. docs/observing.md explains the report.
"""
