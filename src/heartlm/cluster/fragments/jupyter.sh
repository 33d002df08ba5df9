# What to run; the token in the address it prints keeps others out.
chmod go= /dev/stdout || true # the job's output, whatever the umask
command=(
    --no-browser
    "--ip=$(hostname)"
    --port=@port@
    --port-retries=0
)
echo "JupyterLab will be at $(hostname):@port@"
