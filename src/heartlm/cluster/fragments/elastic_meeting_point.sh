# $1 is the job to help with the nodes of this one; without it, this is the main job.
ranks=@ranks@ # on each
main=${1:-$SLURM_JOB_ID}
about=$(scontrol --oneliner show job "$main") || about=
if [[ $main != "$SLURM_JOB_ID" && $about != *' JobState=RUNNING '* ]]; then
    if [[ $about =~ ' JobState='(PENDING|REQUEUED|COMPLETING|CONFIGURING|SUSPENDED)' ' ]]; then
        scontrol requeue "$SLURM_JOB_ID"
    fi
    echo "job $main does not run: nothing to help with"
    exit 0
fi
[[ $about =~ ' NodeList='([^ ]*) ]] && mapfile -t hosts < <(scontrol show hostnames "${BASH_REMATCH[1]}")
[[ $about =~ ' Restarts='([0-9]*) ]] && meeting=$main-${BASH_REMATCH[1]}
address=$(scontrol --oneliner show node "${hosts[0]}" | grep -o 'NodeAddr=[^ ]*')
rendezvous="${address#NodeAddr=}:$((10000 + main % 20000))"
