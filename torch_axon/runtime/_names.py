"""Names of the functions that runtimes call among themselves."""

# The prefix of these names.
OWN = "axon."
NEXT = "axon.next"
STOP = "axon.stop"
EXPOSE = "axon.lend"
NUMBER = "axon.number"  # a named argument which says that the caller iterates; no Python parameter can have this name
