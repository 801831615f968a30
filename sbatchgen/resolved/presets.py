"""Presets of programs: what each of their tasks runs around the command, as lines of bash.

Source: docs.ray.io, "Deploying on Slurm", and `ray start --help` of 2.60.
"""

from sbatchgen.units import ProgramName

# A worker that ends before the command does is a failure. Ray would take all CPUs of a node for its own.
_RAY = """
host=$NAME_HOST port=$NAME_PORT over=$RUN_DIR/programs/ray.over
cpus=${SLURM_CPUS_PER_TASK:+--num-cpus=$SLURM_CPUS_PER_TASK}
answers() { (: <>"/dev/tcp/$host/$port") 2>/dev/null; }
if ((SLURM_PROCID)); then # a worker
    until answers; do sleep 1; done
    ray start --block --address="$host:$port" $cpus & node=$!
    while kill -0 "$node" 2>/dev/null && answers; do sleep 2; done
    kill "$node"; wait; [[ -e $over ]]; exit
fi
rm -f -- "$over"
ray start --block --head --node-ip-address="$host" --port="$port" --include-dashboard=false $cpus & head=$!
until answers; do kill -0 "$head" || exit 1; sleep 1; done
export RAY_ADDRESS=$host:$port
python3 -c "import ray, time; ray.init()
for _ in range(600): len(ray.nodes()) < $SLURM_NTASKS and time.sleep(1)
if len(ray.nodes()) < $SLURM_NTASKS: exit(f\\"{len(ray.nodes())} of $SLURM_NTASKS nodes joined\\")" || exit
"$@"; status=$?
touch -- "$over"; kill "$head"; wait; exit "$status"
"""
_PRESETS = {"ray": _RAY}


def lines_of_task(preset: str, name: ProgramName) -> tuple[str, ...]:
    """Return what each task of a program runs, with the command as its arguments; () without a preset."""
    return tuple(_PRESETS[preset].strip().replace("NAME", name.variable).split("\n")) if preset else ()
