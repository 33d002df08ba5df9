if grep -qs '"finished": null' "$run_folder/run.json"; then
    echo "$run_folder was started and is not finished: it continues"
    command=("${command[0]}" "--resume=$run_folder")
fi
