if ((status == @stopped@)) && [[ -z $cancelled ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
