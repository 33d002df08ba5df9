status=0
wait "$step" || status=$?
while [[ -n $asked ]]; do # a signal ended the waiting, not the run
    asked=
    status=0
    wait "$step" || status=$?
done
