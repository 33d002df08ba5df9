# Which experiment: the line of this task.
tasks=@tasks@
IFS=$'\t' read -r @fields@ < <(sed -n "${SLURM_ARRAY_TASK_ID}p" "$tasks")
command=()
eval "command=($words)"
