step=
asked=
# Asked to stop, ranks save a checkpoint and end with @stopped@; the same command continues.
trap 'asked=yes; kill -USR1 "$step" || true' USR1 INT TERM
"${launcher[@]}" "${command[@]}" &
step=$!
