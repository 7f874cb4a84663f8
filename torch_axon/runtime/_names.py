"""Names that runtimes use among themselves."""

# What names begin with of functions that runtimes call by themselves.
OWN = "axon."
NEXT = "axon.next"
STOP = "axon.stop"
EXPOSE = "axon.lend"
NUMBER = "axon.number"  # the argument that says that the caller iterates; no function has one of that name
