if [[ $main != "$SLURM_JOB_ID" ]]; then
    if ((status != 0 && ${SLURM_RESTART_COUNT:-0} < @requeues@)) && [[ -z $cancelled ]]; then
        scontrol requeue "$SLURM_JOB_ID" # it joins again, or ends at once where the main job has ended
    fi
elif ((status == @stopped@)) && [[ -z $cancelled ]]; then
    scontrol requeue "$SLURM_JOB_ID"
else # helpers that still wait in the queue are not needed any more
    scancel --state=PENDING --name="$SLURM_JOB_NAME-helps-$main" || true
fi
