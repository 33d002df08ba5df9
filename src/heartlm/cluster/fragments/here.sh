# Where: on this machine.
cpus=@cpus@
ranks=@ranks@
