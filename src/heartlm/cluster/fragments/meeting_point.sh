# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
ranks=@ranks@ # on each
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"
