#!/bin/bash
# heartlm pretrain on 1 to 4 nodes × 4 GPUs, profile generic.
#SBATCH --job-name=foundation
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=logs/foundation-%j.out

set -euo pipefail

# Where: what SLURM gave, which may be another number of nodes after a requeue.
cpus=$SLURM_CPUS_PER_TASK
nodes=$SLURM_JOB_NUM_NODES
# $1 is the job to help with the nodes of this one; without it, this is the main job.
ranks=4 # on each
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
export OMP_NUM_THREADS=$((cpus > ranks ? cpus / ranks : 1))
export NCCL_DEBUG=WARN
export HEARTLM_HOSTS="${hosts[*]}"
echo "nodes: $nodes, ranks on each: $ranks, they meet at $rendezvous"

# What to run.
command=(
    pretrain
    --corpus=corpora/many
    --out=runs/foundation
    '--weights={"mitdb": 2}'
    --no-pin
    --steps=5000
)
run_folder=runs/foundation
if grep -qs '"finished": null' "$run_folder/run.json"; then
    echo "$run_folder was started and is not finished: it continues"
    command=("${command[0]}" "--resume=$run_folder")
fi

# How: one torchrun a node starts the ranks there.
launcher=(
    python -m heartlm.cluster.torchrun
    --nnodes=1:4 "--nproc-per-node=$ranks" --max-restarts=3
    --rdzv-backend=c10d "--rdzv-endpoint=$rendezvous" "--rdzv-id=$meeting"
    -m heartlm
)

step=
asked=
cancelled=
# Asked to stop, 120 s before the time limit, a training saves a checkpoint and ends with status 143; then
# this job queues again and continues where it was. Cancelled, it does not.
trap 'asked=yes; kill -USR1 "$step" || true' USR1
trap 'asked=yes cancelled=yes' TERM
srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --cpus-per-task="$cpus" --cpu-bind=cores \
    --kill-on-bad-exit=0 --wait=60 \
    "${launcher[@]}" "${command[@]}" &
step=$!
status=0
wait "$step" || status=$?
while [[ -n $asked ]]; do # a signal ended the waiting, not the run
    asked=
    status=0
    wait "$step" || status=$?
done
if [[ $main != "$SLURM_JOB_ID" ]]; then
    if ((status != 0 && ${SLURM_RESTART_COUNT:-0} < 20)) && [[ -z $cancelled ]]; then
        scontrol requeue "$SLURM_JOB_ID" # it joins again, or ends at once where the main job has ended
    fi
elif ((status == 143)) && [[ -z $cancelled ]]; then
    scontrol requeue "$SLURM_JOB_ID"
else # helpers that still wait in the queue are not needed any more
    scancel --state=PENDING --name="$SLURM_JOB_NAME-helps-$main" || true
fi
exit "$status"
