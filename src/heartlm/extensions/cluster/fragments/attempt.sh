# Each attempt leaves a log and notes of how it began and ended. After a first failure it queues again.
attempts=$experiments/$name
mkdir -p "$attempts"
number=1
while [[ -e $attempts/attempt-$number.begun ]]; do
    number=$((number + 1))
done
attempt=$attempts/attempt-$number
note() {
    printf '{"at": %d, "host": "%s", "job": "%s", "status": %s}\n' \
        "$(date +%s)" "$(hostname)" "$SLURM_JOB_ID" "$2" >"$attempt.part"
    mv "$attempt.part" "$attempt.$1"
}
note begun null
status=0
cancelled=
trap 'cancelled=yes' TERM
again=$attempts/again-$SLURM_JOB_ID
trap '
    status=$?
    note ended "$status"
    if ((status != 0 && status != @stopped@)) && [[ -z $cancelled && ! -e $again ]]; then
        touch "$again"
        scontrol requeue "$SLURM_JOB_ID"
    fi
' EXIT
exec >"$attempt.log" 2>&1

