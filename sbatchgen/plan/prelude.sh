# Read by each bash in the sandbox at its start (BASH_ENV).
[[ ${HOSTNAME@a} == *x* ]] || HOSTNAME=${SLURMD_NODENAME-$HOSTNAME} # which bash sets itself if it inherits none
RANDOM=$((1 + ${SLURM_PROCID:-0})) # the same in each plan, and another in each task
command_not_found_handle() { # in a process of its own, whose number keeps the order of a pipeline
    local __plan_by=0
    __plan_at=${BASH_LINENO[0]} exec /run/plan/bin/unknown "$@"
}
conda() { # a function of the shell, as the real one
    __plan_at=${BASH_LINENO[0]} /run/plan/bin/conda "$@" && [[ ${1-} != activate ]] || export CONDA_DEFAULT_ENV=${2-base} CONDA_PREFIX=$HOME/conda/envs/${2-base}
}
ulimit() { builtin ulimit "$@" 2>/dev/null || true; } # the limits of a node may be others
wait() { ((++__plan_waits)); builtin wait "$@"; } # what starts before a wait may run at the same time
# Of a job with several programs: all are ready at once.
[[ ! -v __plan_ready ]] || { ready() { tell "$1" ready; }; answers() { :; }; readonly -f ready answers; }
if [[ ! -v __plan_line ]]; then # the batch script's own
    export __plan_line=0 __plan_waits=0 __plan_count=0 # of the commands before: numbers of processes begin again
    __plan_by=1
    exec {BASH_XTRACEFD}>/run/plan/trace
    # The line of the batch script; where another file runs, that of the call, by the length of its name.
    PS4=$'+$((__plan_count += __plan_by, __plan_line = ${#BASH_SOURCE} == ${#BASH_SOURCE[-1]} ? LINENO : 10#0${BASH_LINENO[@]: -2:1}))\x1f$BASH_SOURCE\x1f$PWD\x1f'
    set -x
fi
