# The clock of a dry run. Programs take no time there; sleep passes it; what the script has started in the background has
# ended, or waits for something, before the script does what others see. So the order of events is the same in each run.
# Sleepers in the background are pipes in /run/plan/clock, named by the times at which they end, in thousandths of a second.

# A process ignores SIGINT in the background, but not in its first moments, before bash has told it so. All are asleep if two
# looks, one after the other, see each of them asleep and none has run in between: then all slept between these looks.
__plan_settle() { # until nothing in the background computes; it ignores SIGINT, as bash starts it
    local - process stat state ran busy found before='' seen looks=0 pause never IFS=' '
    set +efux
    # Nothing is ever read from it; a process substitution would change $!.
    [[ -p /run/plan/never ]] || /bin/mkfifo /run/plan/never 2>/dev/null
    exec {never}<>/run/plan/never
    while ((looks++ < 4000)); do
        busy='' found='' seen=''
        for process in /proc/[0-9]*; do
            ran=''
            { read -r ran <"$process/schedstat"; read -r stat <"$process/stat"; } 2>/dev/null || {
                found=1 busy=1 # it has ended since, and may have started another one before
                continue
            }
            state=(${stat##*) })
            if ((state[30] >> 1 & 1)); then
                [[ ${stat%% *} != "$BASHPID" ]] || break 2 # it is in the background itself
                seen+="${stat%% *} $ran $((state[11] + state[12]));"
            else # forked, without a program of its own yet, and run for less than 40 ms: 0x40 is PF_FORKNOEXEC
                [[ ${state[0]} == [RD] && ${stat%% *} != "$BASHPID" ]] || continue
                ((state[6] & 0x40 && state[11] + state[12] < 4)) || continue
            fi
            found=1
            [[ ${state[0]} != [RD] ]] || busy=1
        done
        [[ $found ]] || break
        [[ $busy || $seen != "$before" ]] || break
        before=$seen
        [[ ! $busy ]] || before=''
        printf -v pause '0.%03d' $((looks < 40 ? 2 : 10)) # what computes for long gets the processor
        read -rt "$pause" -u "$never"
    done
    exec {never}>&-
    return 0
}
__plan_ignores() { # whether a process ignores SIGINT
    local stat IFS=' '
    read -r stat <"/proc/$1/stat" || return 1
    stat=(${stat##*) })
    ((stat[30] >> 1 & 1))
}
__plan_now() { # the time, in the variable now
    now=0
    [[ ! -s /run/plan/clock/now ]] || read -r now </run/plan/clock/now
}
__plan_wake() { # the first sleeper, if it ends before a time
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
__plan_sleep() { # the words of a command of sleep
    local word sum=0 part now due
    for word in "$@"; do
        [[ $word =~ ^([0-9]{0,9})(\.([0-9]{0,3}))?[0-9]*([smhd]?)$ ]] || { sum=100000000000; continue; }
        part=${BASH_REMATCH[3]}000
        part=$((10#0${BASH_REMATCH[1]} * 1000 + 10#${part:0:3}))
        case ${BASH_REMATCH[4]} in m) ((part *= 60)) ;; h) ((part *= 3600)) ;; d) ((part *= 86400)) ;; esac
        ((sum += part))
    done
    [[ -d /run/plan/clock ]] || /bin/mkdir -p /run/plan/clock
    __plan_now
    if __plan_ignores $$ && [[ -e /proc/${__plan_main:-0} ]] && ! __plan_ignores "$__plan_main"; then
        printf -v word '/run/plan/clock/%015d.%09d.sleeper' $((now + sum)) $$
        /bin/mkfifo "$word"
        read -r _ <"$word" # until another process wakes it
        exec /bin/rm -f "$word"
    fi
    __plan_settle
    for part in 1 2 3 4 5 6; do __plan_wake $((now + sum)) || break; done
    echo $((now + sum)) >/run/plan/clock/now
}
