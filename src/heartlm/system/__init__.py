"""The machine: cores, memory, network, processes, progress on a terminal."""
