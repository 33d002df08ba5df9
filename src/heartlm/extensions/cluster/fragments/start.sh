step=
asked=
cancelled=
# Asked to stop, @lead_s@ s before the time limit, a training saves a checkpoint and ends with status @stopped@; then
# this job queues again and continues where it was. Cancelled, it does not.
trap 'asked=yes; kill -USR1 "$step" || true' USR1
trap 'asked=yes cancelled=yes' TERM
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$cpus" --cpu-bind=cores \
    --kill-on-bad-exit=0 --wait=@others_s@ \
    "${launcher[@]}" "${command[@]}" &
step=$!
