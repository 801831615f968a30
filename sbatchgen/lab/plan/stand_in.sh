#!/bin/bash -p
# The stand-in for a program that is not there: it records its start, and prints the answer that a script may wait for.
# A record holds texts that end in NUL: name, line of the script, waits before it, 1 in the background, folder, the number
# of arguments, the arguments, and the environment.
called=$0 name=${0##*/}
[[ $name != unknown ]] || { called=$1 name=${1##*/}; shift; }

record() {
    local environment key value number=0 file
    mapfile -d '' -t environment </proc/self/environ
    while read -r key value; do [[ $key != SigIgn: ]] || break; done </proc/self/status
    printf -v file '/run/plan/starts/%09d.%09d' "${__plan_count:-0}" $$
    while [[ -e $file.$number ]]; do ((number++)); done
    printf '%s\0' "$called" "${__plan_at:-${__plan_line:-0}}" "${__plan_waits:-0}" $((16#${value:-0} >> 1 & 1)) "$PWD" $# "$@" \
        "${environment[@]}" >"$file.$number"
}
is_captured() { [[ -p /proc/self/fd/1 ]]; } # whether $( ) or a pipe reads the output
say_unknown() { # a stand-in that reads nothing may have closed the pipe: that must end no program
    trap '' PIPE
    ! is_captured || echo UNKNOWN 2>/dev/null || :
}
expanded() { # print the names of node[1-2,4],x, a name on each line
    local rest=$1 item range
    while [[ $rest =~ ^([^],[]*)(\[([^]]*)\])?,?(.*)$ && $rest ]]; do
        item=${BASH_REMATCH[1]} ranges=${BASH_REMATCH[3]} rest=${BASH_REMATCH[4]}
        [[ $ranges ]] || { echo "$item"; continue; }
        for range in ${ranges//,/ }; do
            for number in $(eval "echo {${range%-*}..${range#*-}}"); do echo "$item$number"; done
        done
    done
}
list_gpus() { # ARGUMENTS of nvidia-smi: print the GPUs as it does
    query=${*/#/ }
    for ((gpu = 0; gpu < gpus; gpu++)); do
        case " $* " in
            *" -L "*|*--list-gpus*) echo "GPU $gpu: GPU (UUID: GPU-0000000$gpu)" ;;
            *--query-gpu=*)
                fields=${query#*--query-gpu=} fields=${fields%% *} values=
                for field in ${fields//,/ }; do
                    case $field in
                        index) value=$gpu ;; name|gpu_name) value=GPU ;; count) value=$gpus ;;
                        memory.total) value="81559 MiB" ;; *) value=0 ;;
                    esac
                    values+="${values:+, }$value"
                done
                echo "$values" ;;
        esac
    done
}
show_job() {
    echo "JobId=$SLURM_JOB_ID JobName=$SLURM_JOB_NAME
   UserId=$SLURM_JOB_USER($SLURM_JOB_UID) GroupId=$SLURM_JOB_USER($SLURM_JOB_GID) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:01 TimeLimit=1-00:00:00 TimeMin=N/A
   SubmitTime=2026-01-01T00:00:00 EligibleTime=2026-01-01T00:00:00
   StartTime=2026-01-01T00:00:00 EndTime=2026-01-02T00:00:00 Deadline=N/A
   Partition=$SLURM_JOB_PARTITION AllocNode:Sid=$SLURM_SUBMIT_HOST:1
   NodeList=$SLURM_JOB_NODELIST
   BatchHost=$node
   NumNodes=$SLURM_JOB_NUM_NODES NumCPUs=$cpus NumTasks=${SLURM_NTASKS:-$SLURM_JOB_NUM_NODES} CPUs/Task=${SLURM_CPUS_PER_TASK:-1}
   TRES=cpu=$cpus,node=$SLURM_JOB_NUM_NODES,billing=$cpus${SLURM_GPUS_ON_NODE:+,gres/gpu=$((gpus * SLURM_JOB_NUM_NODES))}
   Command=/run/plan/job.sh
   WorkDir=$SLURM_SUBMIT_DIR"
}
show_node() {
    local cpus=${SLURM_CPUS_ON_NODE:-1}
    echo "NodeName=$1 Arch=x86_64 CoresPerSocket=$cpus
   CPUAlloc=$cpus CPUEfctv=$cpus CPUTot=$cpus CPULoad=0.00
   Gres=${SLURM_GPUS_ON_NODE:+gpu:$gpus}
   NodeAddr=$(address "$1") NodeHostName=$1
   State=ALLOCATED ThreadsPerCore=1
   Partitions=$SLURM_JOB_PARTITION"
}
show_ray() { # print that all workers have joined
    local total=$((gpus * ${SLURM_JOB_NUM_NODES:-1})).0
    echo "Active:"; for ((i = 1; i <= ${SLURM_JOB_NUM_NODES:-1}; i++)); do echo " 1 node_$i"; done
    printf ' 0.0/%s %s\n' "$total" GPU "$total" worker_units
}
in_one_piece() { # COMMAND: print its output at once, because head -n 1 ends a program that writes line by line
    local text
    text=$("$@")
    [[ ! $one_line ]] || text=${text//$'\n'/ }
    [[ ! $text ]] || exec /bin/cat <<<"$text" # bash itself writes line by line
}
address() { echo "10.0.0.$((10#${1//[!0-9]/}))"; }
is_free() { # whether a port of a node is free: at first it is, then the server that a script waits for has it
    local node file=/run/plan/asked.${SLURM_PROCID-}.${*//[^A-Za-z0-9]/_}
    case " $* " in
        *[Ll]ocalhost*|*127.*|*0.0.0.0*|*10.0.0.*|*node[0-9]*|*:[0-9]*|*/tcp*) [[ ! -e ${file:0:200} ]] && : >"${file:0:200}" ;;
        *) return 1 ;; # a server outside of the job
    esac
}
same_name() { # ARGUMENTS of mktemp: make the file or folder with a number in place of the X
    local path word template=tmp.XXXXXXXXXX digits end number
    path=$(/usr/bin/mktemp "$@") || exit
    for word in "$@"; do [[ ${word##*/} != *XXX* || $word == -* ]] || template=$word; done
    template=${template##*/} digits=${template%"${template##*X}"}
    end=${#digits} digits=${digits##*[!X]} template=${path##*/}
    for ((number = ${__plan_count:-0} * 1000 + ${SLURM_PROCID:-0}; ; number++)); do
        printf -v word '%0*d' "${#digits}" "$number"
        word=${path%"$template"}${template:0:end - ${#digits}}${word: -${#digits}}${template:end}
        [[ -e $word ]] || break
    done
    [[ ! -e $path ]] || /bin/mv -n -- "$path" "$word"
    echo "$word"
}
same_bytes() { # print bytes in place of random ones, different in each call
    local byte
    RANDOM=$((1 + ${__plan_count:-0}))
    while printf -v byte '\\x%02x' $((RANDOM >> 4 & 255)) && printf '%b' "$byte" 2>/dev/null; do :; done
}
same_numbers() { # print Python that fixes the time, random numbers, and free ports
    echo "import os, time; time.time = lambda: 1767225600.0; number = iter(range(${__plan_count:-0} * 1000, 10 ** 12))"
    echo "os.urandom = lambda size: (next(number) * 0x9E3779B97F4A7C15).to_bytes(size + 16, 'little')[:size]"
    echo "import random, socket; random.seed(${__plan_count:-0})"
    echo "random._ports, random._bind = iter(range($((20000 + ${__plan_count:-0})), 60000)), socket.socket.bind"
    echo "socket.socket.bind = lambda at, to: random._bind(at, (to[0], next(random._ports)) if type(to) is tuple and not to[1] else to)"
}
start() { # ARGUMENTS: start other programs, as srun and wrappers do
    exec "$(</run/plan/python)" -I -S -c 'import sys; sys.path[:0] = ["/run/plan"]; import step; sys.exit(step.main())' "$name" "$@"
}
is_script_of() { # FILE: whether it starts a known module of Python, as a copy of torchrun does; set module
    local text known
    [[ -f ${1-} && $1 != *.py ]] && read -r -N 2000 text <"$1" || [[ ${text-} ]] || return 1
    read -r known </run/plan/modules
    [[ $text =~ ^'#!' && $text =~ from\ ([a-z_][a-z0-9_.]*)\ import && $known == *"|${BASH_REMATCH[1]}|"* ]] && module=${BASH_REMATCH[1]}
} 2>/dev/null
__plan_end_at_limit() { # the process number is the count of processes
    local most
    read -r most _ </run/plan/most || most=$$
    (($$ > most)) || return 0
    . /run/plan/clock.sh
    ! __plan_is_aside || read -r _ <>/run/plan/never # the script ends at its own command, never in the background
    kill -XFSZ "${__plan_main:-$$}" # the same end as that of a program that writes too much
}
one_line= gpus=${SLURM_GPUS_ON_NODE:-0} node=${SLURMD_NODENAME:-node1} cpus=$((${SLURM_CPUS_ON_NODE:-1} * ${SLURM_JOB_NUM_NODES:-1}))

# Wait until processes in the background have started. A task does not: its step has waited, and all tasks run at once.
[[ $name == sleep || ${__plan_starter-} == "$PPID" ]] || { . /run/plan/clock.sh; __plan_settle; }
__plan_end_at_limit
case $name in
    srun) start "$@" ;;
    conda|mamba|micromamba|uv)
        [[ ${1-} != run ]] || start "$@"
        record "$@"
        [[ "$*" != "info --base" ]] || echo "$HOME/conda" ;;
    # Each plan gets the same day, unless an option names another, and the same numbers in place of random ones.
    date) [[ " $*" =~ " "-(d|r|f|-date|-reference|-file) ]] || set -- -d @1767225600 "$@"; exec /bin/date "$@" ;;
    mktemp) same_name "$@" ;;
    uuidgen) printf '00000000-0000-4000-8000-%012d\n' "${__plan_count:-0}" ;;
    shuf) [[ " $*" == *" --random-source"* ]] || set -- --random-source=<(same_bytes) "$@"; exec /usr/bin/shuf "$@" ;;
    openssl)
        [[ "$*" =~ ^rand\ -(hex|base64)\ ([0-9]{1,3})$ ]] || exec /usr/bin/openssl "$@"
        printf '%0*x\n' $((2 * BASH_REMATCH[2])) "${__plan_count:-0}" ;;
    hostname) case ${1-} in -i|-I|--ip*|--all-ip*) address "$node" ;; *) echo "$node" ;; esac ;;
    ip|ifconfig) echo "    inet $(address "$node")/24 scope global hsn0" ;;
    getent) echo "$(address "${2-1}")  ${2-}" ;;
    nproc) echo "${SLURM_CPUS_ON_NODE:-1}" ;;
    sleep) . /run/plan/clock.sh; __plan_sleep "$@" ;;
    nvidia-smi|rocm-smi) in_one_piece list_gpus "$@" ;;
    scontrol)
        words=()
        for word in "$@"; do
            case $word in -o|-do|--oneliner) one_line=1 ;; -d|--detail*) ;; *) words+=("$word") ;; esac
        done
        case "${words[*]}" in
            "show hostname"*) in_one_piece expanded "${words[2]-${SLURM_JOB_NODELIST-}}" ;;
            "show job"*) in_one_piece show_job ;;
            "show node"*) in_one_piece show_node "${words[2]-$node}" ;;
            *) record "$@" ;;
        esac ;;
    nc|ncat|netcat) record "$@"; [[ ! " $*" =~ " "-[a-z]*z ]] || ! is_free "$@" || exit 1 ;;
    telnet|lsof|fuser) record "$@"; ! is_free "$@" || exit 1; say_unknown ;;
    ss) record "$@"; [[ "$*" == *:[0-9]* ]] && is_free "$@" || say_unknown ;;
    squeue|sacct|sinfo|sstat|git|curl|wget|netstat|dig|nslookup|host) record "$@"; say_unknown ;;
    sbatch) record "$@"; [[ " $* " == *" --parsable "* ]] && echo 1000002 || echo "Submitted batch job 1000002" ;;
    ray)
        if [[ ${1-} == status ]]; then in_one_piece show_ray
        else
            record "$@"; exit "${__plan_status:-0}"
        fi ;;
    python*|pypy*)
        if is_captured && [[ ${1-} == -c || (${1--} == - && $# -lt 2) ]]; then
            [[ ${1-} != -c || ${2-} != *@(random|socket|uuid|secrets|time)* ]] || set -- -c "$(same_numbers)"$'\n'"$2" "${@:3}"
            # A loop that sleeps without end must use up its CPU seconds: in seconds of a clock a busy machine does less.
            [[ ${1-} != -c || ${2-} != *sleep* || ${2-} == *__future__* ]] || set -- -c $'import time; time.sleep = lambda _: None\n'"$2" "${@:3}"
            (ulimit -t 2; exec "$(</run/plan/python)" -S "$@" 2>/dev/null) || echo UNKNOWN
        elif [[ ${1-} == --version || ${1-} == -V ]]; then
            echo "Python 3.11.0"
        else
            [[ ${1-} == */bin/* ]] || ! is_script_of "${1-}" || set -- -m "$module" "${@:2}"
            record "$@"; say_unknown; exit "${__plan_status:-0}"
        fi ;;
    module|ml|dcgmi|spack|sbcast|sgather|sattach|sprio|sshare|sreport|sacctmgr|pip|pip3|ping|scp|rsync|pkill|killall|modulecmd|lmod) record "$@" ;;
    scancel) record "$@" ;;
    ssh) record "$@"; exit "${__plan_status:-0}" ;;
    *)
        read -r wrappers </run/plan/wrappers
        [[ $wrappers != *"|$name|"* && $wrappers != *"|$name ${1-}|"* ]] || start "$@"
        record "$@"; say_unknown; exit "${__plan_status:-0}" ;;
esac
exit 0
