# What has to work in the image: `apptainer build` runs it when all is there.
#
# HEARTLM_PREFIX       the virtual environment that post.sh made
set -euo pipefail

heartlm=$HEARTLM_PREFIX/bin/heartlm
"$heartlm" --version
"$HEARTLM_PREFIX/bin/python" - <<'END'
from heartlm.kernels.library import variants

print("kernels:", *variants())
assert variants(), "the compiler was there, the kernels are not"
END

# A training from nothing: simulated hearts, their tokens, a few steps.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1
"$heartlm" data simulate hearts --patients 6 --minutes 1 --seed 1 >/dev/null
"$heartlm" tokenize hearts --tokenizer rhythm --processes 1 --out corpus >/dev/null
"$heartlm" pretrain --corpus corpus --depth 1 --window 16 --batch-size 4 --steps 2 --threads 1 --device cpu --out run
test -s run/models/last/model.safetensors
