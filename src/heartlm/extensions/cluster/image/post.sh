# What makes the image what it is; it works in a clean virtual environment, too.
#
# HEARTLM_PREFIX       the virtual environment to make; nothing is there yet
# HEARTLM_SOURCE       a checkout of heartlm, or what of it an installation needs, or a wheel and constraints.txt
# HEARTLM_PYTHON       the Python that makes it
# HEARTLM_SYSTEM=yes   install that Python and a C compiler too, which takes root and apt-get
set -euo pipefail

if [[ ${HEARTLM_SYSTEM:-no} == yes ]]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # The compiler builds the kernels, and torch.compile wants one at every run.
    apt-get install -y -qq --no-install-recommends ca-certificates gcc libc6-dev python3 python3-dev python3-venv
    rm -rf /var/lib/apt/lists/*
fi

"$HEARTLM_PYTHON" -m venv "$HEARTLM_PREFIX"
pip=("$HEARTLM_PREFIX/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check)
pip+=(--constraint "$HEARTLM_SOURCE/constraints.txt")

# torch by its exact version first, so that nothing else chooses one.
torch=$(grep -E '^torch==' "$HEARTLM_SOURCE/constraints.txt")
"${pip[@]}" "$torch"
wheels=("$HEARTLM_SOURCE"/heartlm-*.whl)
installed=$HEARTLM_SOURCE
[[ ! -e ${wheels[0]} ]] || installed=${wheels[0]}
"${pip[@]}" "${installed}[all,energy]"
