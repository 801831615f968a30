# Each bash in the sandbox reads this file at its start (BASH_ENV).
[[ ${HOSTNAME@a} == *x* ]] || HOSTNAME=${SLURMD_NODENAME-$HOSTNAME} # bash itself sets it if it inherits none
RANDOM=$((1 + ${SLURM_PROCID:-0})) # the same in each plan, different in each task
unset SRANDOM EPOCHSECONDS EPOCHREALTIME SECONDS # they become ordinary variables
SRANDOM=$((1000003 * (1 + ${SLURM_PROCID:-0}) & 0x7FFFFFFF)) EPOCHSECONDS=1767225600 EPOCHREALTIME=1767225600.000000 SECONDS=0
[[ ! -v __plan_tells_time ]] || printf() { # %(...)T with -1, -2 or no argument prints the fixed time
    local __plan_word __plan_words=()
    for __plan_word in "$@"; do
        [[ $__plan_word != -[12] || $* != *"%("*")T"* ]] || __plan_word=1767225600
        __plan_words+=("$__plan_word")
    done
    [[ $# != 1 || $1 != *"%("*")T"* ]] || __plan_words+=(1767225600)
    builtin printf "${__plan_words[@]}"
}
command_not_found_handle() { # in its own process, whose number keeps the order of a pipeline
    local __plan_by=0
    __plan_at=${BASH_LINENO[0]} exec /run/plan/bin/unknown "$@"
}
conda() { # conda is a function of the shell
    __plan_at=${BASH_LINENO[0]} /run/plan/bin/conda "$@" && [[ ${1-} != activate ]] || export CONDA_DEFAULT_ENV=${2-base} CONDA_PREFIX=$HOME/conda/envs/${2-base}
}
ulimit() { builtin ulimit "$@" 2>/dev/null || true; } # a node may have other limits
wait() { # programs that start before a wait may run at the same time; sleepers in the background end meanwhile
    ((++__plan_waits))
    __plan_pass "$@"
    builtin wait "$@"
    set -- $? "$@"
    [[ $# != 2 || ! ${2-} =~ ^[0-9]+$ ]] || set -- "${__plan_ended[$2]:=$1}"
    return "$1"
}
kill() { # a process in the background has ended here at once, but still runs in a job
    local - __plan_word __plan_own __plan_status=0 __plan_probe='' __plan_most __plan_group=''
    set +eux
    [[ ${1-} != -[lL]* && ${1-} != --* ]] || { builtin kill "$@"; return; }
    . /run/plan/clock.sh
    __plan_settle
    ! builtin kill "$@" 2>/dev/null || return 0
    [[ ${1-} != -0 ]] && [[ "${1-} ${2-}" != "-s 0" ]] || __plan_probe=1
    for __plan_word in "$@"; do
        [[ $__plan_word != -- ]] || __plan_group=-
        __plan_word=${__plan_word#"$__plan_group"} # the number of a group is that of its first process
        [[ $__plan_word =~ ^[0-9]+$ ]] || continue
        builtin wait "$__plan_word" 2>/dev/null
        __plan_own=$?
        if [[ $__plan_own == 127 || ${__plan_ended[__plan_word]-} ]]; then
            __plan_status=1
        elif [[ $__plan_probe ]]; then # a loop that waits for the end sees the process three times
            __plan_most=3
            [[ ! -v __plan_ready ]] || __plan_looks_at "$__plan_word"
            ((++__plan_probes[__plan_word] <= __plan_most)) || __plan_ended[__plan_word]=$__plan_own
            [[ ! ${__plan_ended[__plan_word]-} ]] || __plan_status=1
        else
            __plan_ended[__plan_word]=143
        fi
    done
    [[ $__plan_status == 0 ]] || builtin kill "$@"
    return "$__plan_status"
}
__plan_ended=() __plan_probes=()
__plan_pass() { # pass the time until the processes of a wait, or many sleepers, have ended
    local - due now __plan_left __plan_word IFS=$' \n'
    set +eux
    . /run/plan/clock.sh
    __plan_settle
    for ((__plan_left = 40; __plan_left > 0; __plan_left--)); do
        case ${1-} in
            "") [[ $(jobs -pr) ]] || return 0 ;;
            -*) [[ $(jobs -pr) && ! $(jobs -ps) ]] || return 0; __plan_left=1 ;;
            *) for __plan_word in "$@" -; do [[ $__plan_word == - ]] || ! builtin kill -0 "$__plan_word" 2>/dev/null || break; done
                [[ $__plan_word != - ]] || return 0 ;;
        esac
        __plan_wake 999999999999999 || return 0
    done
}
# In a job with several programs all are ready at once. The main program ends at once, and so does a program that fails or
# is waited for. The other programs run until the script has looked five times after the last start or end.
__plan_looks_at() { # PROCESS: set __plan_most
    local name last=''
    if [[ ! -v programs ]]; then # a script of 0.3.0 does not name its main program, which starts last
        for name in "${!pid[@]}"; do ((pid[$name] <= ${last:+pid[$last]} + 0)) || last=$name; done
    fi
    for name in "${!pid[@]}"; do
        [[ ${pid[$name]} == "$1" ]] || continue
        __plan_most=5
        [[ ! ${pid[${__plan_awaited:-none}]-} ]] || __plan_most=1000000 # while the script waits for another program
        [[ $__plan_own == 0 && $name != "${main-$last}" && $name != "${__plan_awaited-}" ]] || __plan_most=0
    done
    [[ "${!pid[*]}" == "${__plan_names-}" ]] || __plan_names=${!pid[*]} __plan_probes=()
}
[[ ! -v __plan_ready ]] || {
    ready() { :; }
    done_with() {
        __plan_awaited=$1
        local look=look # in a script of 0.3.0
        [[ ! $(declare -F look_for_ends) ]] || look=look_for_ends
        until [[ $ended || ! ${pid[$1]-} ]]; do "$look"; done
    }
    readonly -f ready done_with
}
__plan_look() { # called before a command of the batch script
    . /run/plan/clock.sh
    __plan_settle
    ((BASHPID <= __plan_most && __plan_count <= __plan_commands)) || builtin kill -XFSZ "$__plan_main"
}
if [[ ! -v __plan_line ]]; then # only in the batch script's shell
    export __plan_line=0 __plan_waits=0 __plan_count=0 # counts of lines, waits and commands
    export __plan_main=$$
    __plan_by=1
    /bin/mkfifo /run/plan/never # for clock.sh
    __plan_commands=0 __plan_is_same=([1]='') __plan_last=0
    read -r __plan_most __plan_commands </run/plan/most
    exec {BASH_XTRACEFD}>/run/plan/trace
    # The line is that of the batch script; if another file runs, the line of its call. Files differ by the length of their
    # names. Before each command processes in the background go first, and a loop without end reaches its limit.
    PS4=$'+${__plan_is_same[(__plan_count % 500 || !__plan_count) && __plan_last == ${!:-0}]-$(__plan_look)}$((__plan_last = ${!:-0}, __plan_count += __plan_by, __plan_line = ${#BASH_SOURCE} == ${#BASH_SOURCE[-1]} ? LINENO : 10#0${BASH_LINENO[@]: -2:1}))\x1f$BASH_SOURCE\x1f$PWD\x1f'
    set -x
fi
