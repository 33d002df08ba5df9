step=
asked=
cancelled=
# Asked to stop, @lead_s@ s before the time limit, runs save checkpoints; then this task
# queues again and they continue. What failed was tried again and is noted: what needs it finds out.
trap 'asked=yes; kill -USR1 "$step" || true' USR1
trap 'asked=yes cancelled=yes' TERM
@start@ &
step=$!
