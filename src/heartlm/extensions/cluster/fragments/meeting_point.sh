ranks=@ranks@ # on each
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + SLURM_JOB_ID % 20000))"
