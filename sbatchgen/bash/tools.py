"""The options of the commands that start other commands: which take a value, and under which one name.

Sources: srun(1) of Slurm 22.05.8, that of later releases for what came after, and the options of Pyxis 0.24
(args.c); torchrun of torch/distributed/run.py (torch 2.13); `accelerate launch --help` (accelerate 1.x);
deepspeed/launcher/runner.py; mpirun(1) of Open MPI 4.1 and mpiexec of MPICH's Hydra; `apptainer exec --help`
in 1.3, which has Singularity's; podman-run(1) of 5.0; the manual pages of coreutils 9, util-linux,
numactl(8), time(1) and bash(1); python(1); the documentation of pixi, poetry, pdm, micromamba and uv, of
Nsight, nvprof, rocprof and VTune, of dumb-init and tini, and of Lightning Fabric, torchtune and
Composer; strace(1), unbuffer(1), perf-stat(1), perf-record(1) and kernprof.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sbatchgen.bash.grammar import names


@dataclass(frozen=True, kw_only=True, slots=True)
class Syntax:
    """How a command reads its own options.

    Attributes:
        values: The long names of the options that take a value.
        shorts: Letters -> long names; those of options with a value have it in `values`.
        optional: Those of `values` whose value only follows an =.
        single: Whether long options may have one dash, as in mpirun -np 2.
        underscores: Whether _ and - in a name are the same.
        operands: How many words are between the options and the command, such as an image.
        counts: How many values an option takes, where that is not one.
    """

    values: frozenset[str] = frozenset()
    shorts: dict[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    single: bool = False
    underscores: bool = False
    operands: int = 0
    counts: dict[str, int] = field(default_factory=dict)


def _letters(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


SRUN = Syntax(
    values=names(
        "accel-bind account acctg-freq bb bbf bcast bcast-exclude no-kill begin chdir "
        "cluster-constraint clusters comment compress constraint container container-env "
        "container-id container-image container-mounts container-name container-save "
        "container-unshare container-workdir core-spec cores-per-socket cpu-bind cpu-freq "
        "cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution environment "
        "epilog error exclude exclusive export export-file extra extra-node-info gid gpu-bind gpu-freq gpus "
        "gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group hint immediate input "
        "job-name jobid kill-on-bad-exit licenses mail-type mail-user mcs-label mem mem-bind "
        "mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nice nodefile nodelist nodes "
        "ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres "
        "open-mode output pack-group partition power prefer priority profile prolog propagate qos "
        "relative reservation resv-ports send-libs signal slurmd-debug sockets-per-node switches "
        "task-epilog task-prolog thread-spec threads threads-per-core time time-min tmp tree-width "
        "tres-bind tres-per-job tres-per-node tres-per-socket tres-per-task uid wait wckey"
    ),
    optional=names(
        "bcast compress exclusive immediate kill-on-bad-exit no-kill nice propagate resv-ports send-libs"
    ),
    shorts=_letters(
        "A=account b=begin B=extra-node-info c=cpus-per-task C=constraint d=dependency D=chdir e=error "
        "E=preserve-env F=nodefile G=gpus h=help H=hold i=input I=immediate J=job-name k=no-kill "
        "K=kill-on-bad-exit l=label L=licenses M=clusters m=distribution n=ntasks N=nodes o=output "
        "O=overcommit p=partition Q=quiet q=qos r=relative R=no-rotate s=oversubscribe S=core-spec t=time "
        "T=threads u=unbuffered v=verbose V=version W=wait w=nodelist X=disable-status x=exclude "
        "Z=no-allocate"
    ),
)
# Its options that take no value; srun(1) of 22.05 and of later releases.
SRUN_FLAGS = names(
    "contiguous consolidate-segments disable-status exact external-launcher help hold interactive label "
    "multi-prog no-allocate overcommit overlap oversubscribe preserve-env pty quiet quit-on-interrupt reboot "
    "spread-job stepmgr test-only unbuffered usage use-min-nodes verbose version wait-for-children whole x11"
)

TORCHRUN = Syntax(
    values=names(
        "duplicate-stderr-filters duplicate-stdout-filters event-log-handler local-addr "
        "local-ranks-filter log-dir log-line-prefix-template logs-specs master-addr master-port "
        "max-restarts monitor-interval nnodes node-rank nproc-per-node numa-binding rdzv-backend "
        "rdzv-conf rdzv-endpoint rdzv-id redirects role shutdown-timeout signals-to-handle "
        "start-method tee"
    ),
    shorts=_letters("m=module r=redirects t=tee"),
    underscores=True,
)

ACCELERATE = Syntax(
    values=names(
        "config-file num-processes num-machines mixed-precision num-cpu-threads-per-process dynamo-backend "
        "dynamo-mode gpu-ids machine-rank main-process-ip main-process-port max-restarts monitor-interval "
        "rdzv-backend rdzv-conf role tee log-dir same-network-x tpu-name deepspeed-config-file zero-stage "
        "offload-optimizer-device offload-param-device offload-optimizer-nvme-path offload-param-nvme-path "
        "gradient-accumulation-steps gradient-clipping zero3-init-flag zero3-save-16bit-model "
        "deepspeed-hostfile deepspeed-exclusion-filter deepspeed-inclusion-filter "
        "deepspeed-multinode-launcher fsdp-version fsdp-offload-params fsdp-min-num-params "
        "fsdp-sharding-strategy fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap "
        "fsdp-backward-prefetch fsdp-state-dict-type fsdp-forward-prefetch fsdp-use-orig-params "
        "fsdp-cpu-ram-efficient-loading fsdp-sync-module-states fsdp-activation-checkpointing "
        "fsdp-reshard-after-forward env aws-access-key-id aws-secret-access-key ipex-fusion-strategy "
        "fp8-backend"
    ),
    shorts=_letters("m=module"),
    underscores=True,
)

DEEPSPEED = Syntax(
    values=names(
        "hostfile include exclude num-nodes num-gpus master-port master-addr node-rank launcher "
        "launcher-args min-elastic-nodes max-elastic-nodes autotuning bind-core-list ssh-port "
        "venv-script"
    ),
    shorts=_letters("H=hostfile i=include e=exclude p=ssh-port"),
    underscores=True,
)

MPIRUN = Syntax(
    values=names(
        "n np N npernode npersocket host hosts H hostfile machinefile f x wdir wd map-by rank-by "
        "bind-to path prefix output-filename report-events tune am timeout rf rankfile "
        "cpus-per-proc cpus-per-rank ppn perhost iface env genv genvlist launcher bootstrap "
        "configfile mca gmca pmca omca prtemca personality cpu-set slot-list stdin"
    ),
    single=True,
    counts={"mca": 2, "gmca": 2, "pmca": 2, "omca": 2, "prtemca": 2, "env": 2, "genv": 2},
)

APPTAINER = Syntax(
    values=names(
        "add-caps apply-cgroups app bind blkio-weight blkio-weight-device cpu-shares cpus "
        "cpuset-cpus cpuset-mems cwd dns drop-caps env env-file fusemount home hostname memory "
        "memory-reservation memory-swap mount netns-path network network-args overlay pem-path "
        "pids-limit pwd scratch security shell workdir"
    ),
    shorts=_letters(
        "B=bind H=home S=scratch W=workdir c=contain C=containall e=cleanenv i=ipc p=pid u=userns "
        "w=writable o=overlay s=shell"
    ),
    operands=1,
)

PODMAN = Syntax(  # those of podman-hpc are flags
    values=names(
        "add-host annotation arch attach authfile blkio-weight blkio-weight-device cap-add cap-drop cert-dir "
        "cgroup-conf cgroup-parent cgroupns cgroups chrootdirs cidfile conmon-pidfile cpu-period cpu-quota "
        "cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems creds decryption-key "
        "detach-keys device device-cgroup-rule device-read-bps device-read-iops device-write-bps "
        "device-write-iops dns dns-option dns-search entrypoint env env-file env-merge expose gidmap gpus "
        "group-add group-entry health-cmd health-interval health-on-failure health-retries "
        "health-start-period health-startup-cmd health-startup-interval health-startup-retries "
        "health-startup-success health-startup-timeout health-timeout hooks-dir hostname hostuser "
        "image-volume init-path ip ip6 ipc label label-file log-driver log-opt mac-address memory "
        "memory-reservation memory-swap memory-swappiness mount name net network network-alias "
        "oom-score-adj os passwd-entry personality pid pidfile pids-limit platform pod pod-id-file "
        "preserve-fd preserve-fds publish pull rdt-class requires restart retry retry-delay sdnotify "
        "seccomp-policy secret security-opt shm-size shm-size-systemd stop-signal stop-timeout subgidname "
        "subuidname sysctl systemd timeout tmpfs tz uidmap ulimit umask unsetenv user userns uts variant "
        "volume volumes-from workdir"
    ),
    shorts=_letters(
        "a=attach c=cpu-shares d=detach e=env h=hostname i=interactive l=label m=memory P=publish-all "
        "p=publish q=quiet t=tty u=user v=volume w=workdir"
    ),
    operands=1,
)

SHIFTER = Syntax(
    values=names("image volume env env-file module workdir entrypoint"),
    shorts=_letters("i=image V=volume e=env m=module w=workdir E=clearenv v=verbose h=help"),
    optional=names("entrypoint"),
)

MPI = frozenset(
    """
    mpirun mpirun.openmpi mpirun.mpich mpirun_rsh mpiexec mpiexec.openmpi mpiexec.mpich mpiexec.hydra
    mpiexec.slurm mpiexec.mpt mpiexec_mpt orterun prterun
    """.split()  # noqa: SIM905
)
FABRIC = Syntax(
    values=names("accelerator strategy devices num-nodes node-rank main-address main-port precision"),
    underscores=True,
)
OF_CONDA = Syntax(
    values=names("name prefix cwd attach env root-prefix"),
    shorts=_letters("n=name p=prefix v=verbose e=env r=root-prefix a=attach"),
)
NSIGHT = Syntax(
    values=names(
        "output trace sample capture-range capture-range-end cuda-memory-usage delay duration export "
        "force-overwrite stats backtrace cpuctxsw cuda-graph-trace cudabacktrace env-var event-sample "
        "gpu-metrics-device "
        "gpu-metrics-devices gpu-metrics-frequency kill mpi-impl nic-metrics nvtx-capture python-sampling "
        "pytorch sampling-frequency samples-per-backtrace session-new show-output start-later stop-on-exit "
        "trace-fork-before-exec wait"
    ),
    shorts=_letters(
        "o=output t=trace s=sample c=capture-range y=delay d=duration f=force-overwrite b=backtrace "
        "e=env-var p=nvtx-capture w=show-output n=inherit-environment x=stop-on-exit"
    ),
)
COMPOSER = Syntax(
    values=names("nproc stdout stderr world-size base-rank node-rank master-addr master-port"),
    shorts=_letters("n=nproc m=module-mode c=command-mode v=verbose"),
    underscores=True,
)
VTUNE = Syntax(
    values=names("collect r result-dir knob app-working-dir data-limit duration finalization-mode"),
    single=True,
)

PYTHON = Syntax(values=names("W X c m check-hash-based-pycs"), single=True)
ENV = Syntax(
    values=names("unset chdir argv0 split-string"),
    shorts=_letters("u=unset C=chdir i=ignore-environment 0=null v=debug a=argv0 S=split-string"),
)

# Tools by the words that start them; what a tool starts is what follows its options and operands.
SYNTAX: dict[str, Syntax] = {
    "srun": SRUN,
    "torchrun": TORCHRUN,
    "accelerate launch": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "fabric run": FABRIC,
    "lightning run": FABRIC,  # model, whose options are not read
    "tune run": TORCHRUN,
    "composer": COMPOSER,
    **dict.fromkeys(MPI, MPIRUN),
    **dict.fromkeys(("nohup", "poetry run", "pipenv run", "valgrind", "unbuffer"), Syntax()),
    **dict.fromkeys(
        (f"{name} {verb}" for name in ("apptainer", "singularity") for verb in ("exec", "run")), APPTAINER
    ),
    **dict.fromkeys(  # which find the image in a variable
        (f"{name}_wrapper {verb}" for name in ("apptainer", "singularity") for verb in ("exec", "run")),
        replace(APPTAINER, operands=0),
    ),
    "podman-hpc run": PODMAN,
    "shifter": SHIFTER,
    "python": PYTHON,
    "env": ENV,
    "exec": Syntax(values=names("argv0"), shorts=_letters("a=argv0 c=empty l=login")),
    "command": Syntax(shorts=_letters("p=path v=describe V=describe")),
    "time": Syntax(
        values=names("format output"), shorts=_letters("f=format o=output a=append p=portability v=verbose")
    ),
    "timeout": Syntax(
        values=names("kill-after signal"),
        shorts=_letters("k=kill-after s=signal f=foreground p=preserve-status v=verbose"),
        operands=1,
    ),
    "stdbuf": Syntax(values=names("input output error"), shorts=_letters("i=input o=output e=error")),
    "nice": Syntax(values=names("adjustment"), shorts=_letters("n=adjustment")),
    "numactl": Syntax(
        values=names(
            "interleave preferred membind cpunodebind physcpubind weighted-interleave preferred-many"
        ),
        shorts=_letters("i=interleave p=preferred m=membind N=cpunodebind C=physcpubind l=localalloc"),
    ),
    "taskset": Syntax(shorts=_letters("a=all-tasks c=cpu-list p=pid"), operands=1),
    "dumb-init": Syntax(values=names("rewrite"), shorts=_letters("r=rewrite c=single-child v=verbose")),
    "tini": Syntax(values=names("p e")),
    "setsid": Syntax(shorts=_letters("w=wait c=ctty f=fork")),
    "ionice": Syntax(values=names("class classdata"), shorts=_letters("c=class n=classdata t=ignore")),
    "xvfb-run": Syntax(
        values=names("server-num server-args error-file auth-file wait"),
        shorts=_letters("n=server-num s=server-args e=error-file f=auth-file w=wait a=auto-servernum"),
    ),
    "pixi run": Syntax(
        values=names("environment manifest-path platform"), shorts=_letters("e=environment m=manifest-path")
    ),
    "pdm run": Syntax(values=names("project"), shorts=_letters("p=project")),
    **dict.fromkeys(("conda run", "mamba run", "micromamba run"), OF_CONDA),
    "uv run": Syntax(
        values=names(
            "with with-editable with-requirements python project extra no-extra group no-group only-group "
            "directory env-file package index index-url extra-index-url cache-dir config-file"
        ),
        shorts=_letters("p=python m=module s=script w=with"),
    ),
    "nsys profile": NSIGHT,
    "nsys launch": NSIGHT,
    "ncu": Syntax(
        values=names(
            "export kernel-name set section metrics launch-count launch-skip target-processes "
            "log-file import mode nvtx-include nvtx-exclude replay-mode clock-control cache-control devices "
            "config-file kernel-id kernel-name-base section-folder page csv-separator"
        ),
        shorts=_letters("o=export k=kernel-name c=launch-count s=launch-skip f=force-overwrite i=import"),
    ),
    "nvprof": Syntax(
        values=names("log-file export-profile metrics events kernels devices analysis-metrics timeout"),
        shorts=_letters("o=export-profile f=force-overwrite s=print-summary"),
    ),
    "rocprof": Syntax(values=names("i input o d t basenames timestamp ctx-limit heartbeat"), single=True),
    "rocprofv3": Syntax(
        values=names("input output-file output-directory output-format pmc kernel-include-regex"),
        shorts=_letters("i=input o=output-file d=output-directory f=output-format"),
    ),
    "vtune": VTUNE,
    "amplxe-cl": VTUNE,
    "compute-sanitizer": Syntax(values=names("tool log-file save print-limit launch-timeout")),
    "strace": Syntax(values=names("e o p s"), single=True),
    "perf stat": Syntax(values=names("event output repeat"), shorts=_letters("e=event o=output r=repeat")),
    "perf record": Syntax(
        values=names("event output count freq call-graph"), shorts=_letters("e=event o=output c=count F=freq")
    ),
    "kernprof": Syntax(
        values=names("outfile prof-mod"), shorts=_letters("o=outfile p=prof-mod l=line-by-line")
    ),
    "sh": Syntax(values=names("rcfile init-file o O"), shorts=_letters("c=command l=login")),
}
SHELLS = frozenset(("bash", "sh", "dash", "ksh", "zsh", "ash", "rbash", "mksh"))
TORCH_MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch"))
MODULES = {
    **dict.fromkeys(TORCH_MODULES, "torchrun"),
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
