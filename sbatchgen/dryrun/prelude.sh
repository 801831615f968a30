# Read by each bash in the sandbox at its start (BASH_ENV).
command_not_found_handle() { /run/plan/bin/unknown "$@"; }
wait() { ((++__plan_waits)); builtin wait "$@"; } # what starts before a wait may run at the same time
if [[ ! -v __plan_line ]]; then # the batch script's own
    export __plan_line=0 __plan_waits=0
    exec {BASH_XTRACEFD}>/run/plan/trace
    PS4=$'+$((__plan_line = LINENO))\x1f'
    set -x
fi
