# The clock of a dry run. Programs take no time, and sleep passes time. Before the script does something that others see,
# each process in the background has ended or waits for something. So the order of events is the same in each run.
# Sleepers in the background are pipes in /run/plan/clock, named by the times at which they end, in thousandths of a second.

# A process in the background is known by the signals that it ignores. bash lets a command in the background ignore SIGINT.
# A function in the background ignores SIGQUIT, as each bash does, but not a subshell of the foreground (bash 5.2). Programs
# that the function starts ignore neither. So a process is in the background if the process, or a process between it and
# the batch script, ignores such a signal, or if it has left the script's tree. A new process ignores none at first. All
# processes are asleep if two looks, one after the other, see each process asleep and none has run in between.
__plan_settle() { # wait until no process in the background computes
    local - process stat state ran busy found before='' seen looks=0 pause never IFS=' '
    local -A parent signs groups times states
    set +efux
    # A pipe without a writer gives a pause. A process substitution would change $!.
    exec {never}<>/run/plan/never
    while ((looks++ < 4000)); do
        busy='' found='' seen='' parent=() signs=() groups=() times=() states=()
        for process in /proc/[0-9]*; do
            ran=''
            { read -r ran <"$process/schedstat"; read -r stat <"$process/stat"; } 2>/dev/null || {
                found=1 busy=1 # it has ended, and may have started another process before
                continue
            }
            __plan_note
            states[$process]=${state[0]} times[$process]="$ran $((state[11] + state[12]))"
            # forked, still without its own program, and run for less than 40 ms: 0x40 is PF_FORKNOEXEC
            [[ ${state[0]} == [RD] && $process != "$BASHPID" ]] || continue
            ((state[6] & 0x40 && state[11] + state[12] < 4)) || continue
            found=1 busy=1
        done
        ! __plan_is_behind "$BASHPID" || break
        for process in "${!parent[@]}"; do
            __plan_is_behind "$process" || continue
            found=1 seen+="$process ${times[$process]};"
            [[ ${states[$process]} != [RD] ]] || busy=1
        done
        [[ $found ]] || break
        [[ $busy || $seen != "$before" ]] || break
        before=$seen
        [[ ! $busy ]] || before=''
        printf -v pause '0.%03d' $((looks < 40 ? 2 : 10)) # a longer pause leaves the CPU to a process that computes for long
        read -rt "$pause" -u "$never"
    done
    exec {never}>&-
    return 0
}
__plan_note() { # note from a line of /proc/PID/stat whether a process ignores SIGINT, and a bash without a program SIGQUIT
    process=${stat%% *} state=(${stat##*) })
    parent[$process]=${state[1]}
    signs[$process]=$((state[30] & 2 | (state[6] & 0x40 ? state[30] & 4 : 0)))
    groups[$process]=${state[2]}
}
__plan_is_behind() { # PROCESS: whether it is in the background, by the arrays parent, signs and groups of all processes
    local one=$1 main=${__plan_main:-0}
    [[ $one != 1 ]] || return 1
    while [[ $one != "$main" ]]; do
        [[ $one != 1 && ${parent[$one]-} ]] || return 0 # it has left the tree
        ((!signs[$one] || signs[$main] & 2)) || return 0 # in a script that ignores SIGINT all processes do
        # Several programs of a job on one machine start in their own groups, by `set -m`, and ignore no signal. This process
        # may still be in the foreground, if the script itself has started it.
        [[ ! -v __plan_ready || ${groups[$one]} == "${groups[$main]}" || $one-${parent[$one]} == "$$-$main" ]] || return 0
        one=${parent[$one]}
    done
    return 1
}
__plan_is_aside() { # whether this process is in the background while the script goes on
    local process stat state IFS=' '
    local -A parent signs groups
    [[ -e /proc/${__plan_main:-0} ]] || return 1
    for process in /proc/[0-9]*; do
        read -r stat <"$process/stat" || continue
        __plan_note
    done 2>/dev/null
    __plan_is_behind "$$"
}
__plan_now() { # set the variable now to the time
    now=0
    [[ ! -s /run/plan/clock/now ]] || read -r now </run/plan/clock/now
}
__plan_wake() { # TIME: wake the first sleeper, if it ends before
    local - first
    set +efux
    for first in /run/plan/clock/*.sleeper; do break; done
    [[ -p $first ]] || return 1
    due=${first##*/} due=$((10#${due%%.*}))
    ((due <= $1)) || return 1
    __plan_now
    ((due <= now)) || echo "$due" >/run/plan/clock/now
    : >"$first"
    __plan_settle
}
__plan_sleep() { # ARGUMENTS of sleep: let the time pass
    local word sum=0 part now due
    for word in "$@"; do
        [[ $word =~ ^([0-9]{0,9})(\.([0-9]{0,3}))?[0-9]*([smhd]?)$ ]] || { sum=100000000000; continue; }
        part=${BASH_REMATCH[3]}000
        part=$((10#0${BASH_REMATCH[1]} * 1000 + 10#${part:0:3}))
        case ${BASH_REMATCH[4]} in m) ((part *= 60)) ;; h) ((part *= 3600)) ;; d) ((part *= 86400)) ;; esac
        ((sum += part))
    done
    __plan_now
    if __plan_is_aside; then
        printf -v word '/run/plan/clock/%015d.%09d.sleeper' $((now + sum)) $$
        /bin/mkfifo "$word"
        read -r _ <"$word" # until another process wakes it
        exec /bin/rm -f "$word"
    fi
    __plan_settle
    for part in 1 2 3 4 5 6; do __plan_wake $((now + sum)) || break; done
    echo $((now + sum)) >/run/plan/clock/now
}
