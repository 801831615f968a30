"""The table of programs. A new wrapper, launcher or helper is one more row here.

A row is `KINDS: NAMES | OPTIONS`; lines that begin with blanks continue it, and a program may have several.

NAMES: `uv/run` is uv with the verb run, `-m/torch.distributed.run` a module that Python starts as the row's
first program.

OPTIONS, of programs that start others: `n,ntasks=` is -n and --ntasks with a value, `verbose` has none, the
value of `nice?` only follows an =, `mca==` has two, and all words after `c=!` belong to what is started.
NODES, PROCESSES, RANK, PORT and HOST say what a value is for a launcher. `=apptainer/exec` stands for the
options of that program. A number among the kinds counts the words between the options and what is started,
such as an image.

Sources: srun(1) of Slurm 22.05.8, that of later releases for what came after, and the options of Pyxis 0.24
(args.c); torchrun of torch/distributed/run.py (torch 2.13); `accelerate launch --help` (accelerate 1.x);
deepspeed/launcher/runner.py; mpirun(1) of Open MPI 4.1 and mpiexec of MPICH's Hydra; `apptainer exec --help`
in 1.3, which has Singularity's; podman-run(1) of 5.0 (podman-hpc adds flags); the manual pages of coreutils,
util-linux, numactl(8), time(1) and bash(1); python(1); the documentation of pixi, poetry, pdm, micromamba and
uv, of Nsight, nvprof, rocprof and VTune, of dumb-init and tini, and of Lightning Fabric, torchtune and
Composer; strace(1), unbuffer(1), perf-stat(1), perf-record(1) and kernprof.
"""

# step, launcher (of the processes of a node), mpi, interpreter, shell, container, wrapper: starts others
# underscores, single-dash: in names of options _ is a dash; long names have one dash, too
# system: a wrapper that runs in a dry run itself
# posix: a shell that shellcheck and a dry run know
# starter: starts the processes of a training, so that srun must not start it for each task
# elsewhere: starts processes on the nodes of the job itself, and is not followed
# stand-in, answers: a dry run replaces it; its stand-in does more than record the start
# unshown: prepares, asks or cleans up: a dry run does not show it
# silent: does nothing in a rehearsal, as there is no Slurm
# helper: no training depends on it
# prints, looks: only prints something; only looks something up; awk, sed and sort may write files
# closes: has no effect after the training, whose status is the job's
# brief: ends in a moment
# quick, last: may follow a process in the background; is no work if it comes last in a script
# builtin, environment: changes the shell; changes what programs are found
# keeps, passes-on: the script waits for it; passes on what it reads, and hides the status before it
# files: takes names of files
# serial: a task of its own makes no sense for each rank
# polls, waits: asks slurmctld; waits for nothing of the job
# computes: gives the same from the same, so that its value is known
# fetches, downloads: reaches for the internet if it gets an address; in any case
ROWS = """
step: srun | accel-bind= A,account= acctg-freq= bb= bbf= bcast? bcast-exclude= b,begin= D,chdir=
    cluster-constraint= M,clusters= comment= compress? consolidate-segments C,constraint= container=
    container-env= container-id= container-image= container-mounts= container-name= container-save=
    container-unshare= container-workdir= contiguous S,core-spec= cores-per-socket= cpu-bind= cpu-freq=
    cpus-per-gpu= c,cpus-per-task= deadline= delay-boot= d,dependency= X,disable-status m,distribution=
    environment= epilog= e,error= exact x,exclude= exclusive? export= export-file= external-launcher extra=
    B,extra-node-info= gid= gpu-bind= gpu-freq= G,gpus= gpus-per-node= gpus-per-socket= gpus-per-task= gres=
    gres-flags= h,help het-group= hint= H,hold I,immediate? i,input= interactive J,job-name= jobid=
    K,kill-on-bad-exit? l,label L,licenses= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu=
    mem-per-gpu= mincpus= mpi= msg-timeout= multi-prog network= nice? Z,no-allocate k,no-kill? F,nodefile=
    w,nodelist= N,nodes= n,ntasks= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= ntasks-per-socket=
    ntasks-per-tres= open-mode= o,output= O,overcommit overlap s,oversubscribe pack-group= p,partition= power=
    prefer= E,preserve-env priority= profile= prolog= propagate? pty q,qos= Q,quiet quit-on-interrupt reboot
    r,relative= reservation= resv-ports? send-libs? signal= slurmd-debug= sockets-per-node= spread-job stepmgr
    switches= task-epilog= task-prolog= test-only thread-spec= T,threads= threads-per-core= t,time= time-min=
    tmp= treewidth= tres-bind= tres-per-job= tres-per-node= tres-per-socket= tres-per-task= uid= u,unbuffered
    usage use-min-nodes v,verbose V,version W,wait= wait-for-children wckey= whole x11
launcher underscores: torchrun tune/run -m/torch.distributed.run -m/torch.distributed.launch | nnodes=NODES
    nproc-per-node=PROCESSES node-rank=RANK master-port=PORT rdzv-endpoint=HOST master-addr=HOST
    duplicate-stderr-filters= duplicate-stdout-filters= event-log-handler= local-addr= local-ranks-filter=
    log-dir= log-line-prefix-template= logs-specs= max-restarts= m,module monitor-interval= numa-binding=
    rdzv-backend= rdzv-conf= rdzv-id= r,redirects= role= shutdown-timeout= signals-to-handle= start-method=
    t,tee=
launcher underscores: accelerate/launch -m/accelerate.commands.launch -m/accelerate.launch |
    num-machines=NODES num-processes=PROCESSES machine-rank=RANK main-process-port=PORT main-process-ip=HOST
    aws-access-key-id= aws-secret-access-key= config-file= deepspeed-config-file= deepspeed-exclusion-filter=
    deepspeed-hostfile= deepspeed-inclusion-filter= deepspeed-multinode-launcher= dynamo-backend= dynamo-mode=
    env= fp8-backend= fsdp-activation-checkpointing= fsdp-auto-wrap-policy= fsdp-backward-prefetch=
    fsdp-cpu-ram-efficient-loading= fsdp-forward-prefetch= fsdp-min-num-params= fsdp-offload-params=
    fsdp-reshard-after-forward= fsdp-sharding-strategy= fsdp-state-dict-type= fsdp-sync-module-states=
    fsdp-transformer-layer-cls-to-wrap= fsdp-use-orig-params= fsdp-version= gpu-ids=
    gradient-accumulation-steps= gradient-clipping= ipex-fusion-strategy= log-dir= max-restarts=
    mixed-precision= m,module monitor-interval= num-cpu-threads-per-process= offload-optimizer-device=
    offload-optimizer-nvme-path= offload-param-device= offload-param-nvme-path= rdzv-backend= rdzv-conf= role=
    same-network-x= tee= tpu-name= zero-stage= zero3-init-flag= zero3-save-16bit-model=
launcher underscores: deepspeed -m/deepspeed.launcher.runner | num-nodes=NODES num-gpus=PROCESSES
    node-rank=RANK master-port=PORT autotuning= bind-core-list= e,exclude= H,hostfile= i,include= launcher=
    launcher-args= master-addr= max-elastic-nodes= min-elastic-nodes= p,ssh-port= venv-script=
launcher underscores: fabric/run lightning/run | num-nodes=NODES devices=PROCESSES node-rank=RANK
    main-port=PORT main-address=HOST accelerator= precision= strategy=
launcher underscores: composer | n,nproc=PROCESSES node-rank=RANK master-port=PORT master-addr=HOST base-rank=
    c,command-mode m,module-mode stderr= stdout= v,verbose world-size=
mpi single-dash: mpiexec mpiexec.hydra mpiexec.mpich mpiexec.mpt mpiexec.openmpi mpiexec.slurm mpiexec_mpt
    mpirun mpirun.mpich mpirun.openmpi mpirun_rsh orterun prterun | H= N= am= bind-to= bootstrap= configfile=
    cpu-set= cpus-per-proc= cpus-per-rank= env== f= genv== genvlist= gmca== host= hostfile= hosts= iface=
    launcher= machinefile= map-by= mca== n= np= npernode= npersocket= omca== output-filename= path= perhost=
    personality= pmca== ppn= prefix= prtemca== rank-by= rankfile= report-events= rf= slot-list= stdin=
    timeout= tune= wd= wdir= x=
interpreter single-dash: python python3 | W= X= c=! check-hash-based-pycs= m=!
shell: bash sh dash ksh zsh ash rbash mksh | O= c,command init-file= l,login o= rcfile=
container 1: apptainer/exec apptainer/run singularity/exec singularity/run | add-caps= app= apply-cgroups=
    B,bind= blkio-weight= blkio-weight-device= e,cleanenv c,contain C,containall cpu-shares= cpus=
    cpuset-cpus= cpuset-mems= cwd= dns= drop-caps= env= env-file= fusemount= H,home= hostname= i,ipc memory=
    memory-reservation= memory-swap= mount= netns-path= network= network-args= o,overlay= pem-path= p,pid
    pids-limit= pwd= S,scratch= security= s,shell= u,userns W,workdir= w,writable
container: apptainer_wrapper/exec apptainer_wrapper/run singularity_wrapper/exec singularity_wrapper/run |
    =apptainer/exec
container 1: podman-hpc/run podman/run docker/run | add-host= annotation= arch= a,attach= authfile=
    blkio-weight= blkio-weight-device= cap-add= cap-drop= cert-dir= cgroup-conf= cgroup-parent= cgroupns=
    cgroups= chrootdirs= cidfile= conmon-pidfile= cpu-period= cpu-quota= cpu-rt-period= cpu-rt-runtime=
    c,cpu-shares= cpus= cpuset-cpus= cpuset-mems= creds= decryption-key= d,detach detach-keys= device=
    device-cgroup-rule= device-read-bps= device-read-iops= device-write-bps= device-write-iops= dns=
    dns-option= dns-search= entrypoint= e,env= env-file= env-merge= expose= gidmap= gpus= group-add=
    group-entry= health-cmd= health-interval= health-on-failure= health-retries= health-start-period=
    health-startup-cmd= health-startup-interval= health-startup-retries= health-startup-success=
    health-startup-timeout= health-timeout= hooks-dir= h,hostname= hostuser= image-volume= init-path=
    i,interactive ip= ip6= ipc= l,label= label-file= log-driver= log-opt= mac-address= m,memory=
    memory-reservation= memory-swap= memory-swappiness= mount= name= net= network= network-alias=
    oom-score-adj= os= passwd-entry= personality= pid= pidfile= pids-limit= platform= pod= pod-id-file=
    preserve-fd= preserve-fds= p,publish= P,publish-all pull= q,quiet rdt-class= requires= restart= retry=
    retry-delay= sdnotify= seccomp-policy= secret= security-opt= shm-size= shm-size-systemd= stop-signal=
    stop-timeout= subgidname= subuidname= sysctl= systemd= timeout= tmpfs= t,tty tz= uidmap= ulimit= umask=
    unsetenv= u,user= userns= uts= variant= v,volume= volumes-from= w,workdir=
container: shifter | E,clearenv entrypoint? e,env= env-file= h,help i,image= m,module= v,verbose V,volume=
    w,workdir=
wrapper system: nohup
wrapper: poetry/run pipenv/run valgrind unbuffer
wrapper system: env | a,argv0= C,chdir= v,debug i,ignore-environment 0,null S,split-string= u,unset=
wrapper system: exec | a,argv0= c,empty l,login
wrapper system: command | v,describe V,describe p,path
wrapper system: time | a,append f,format= o,output= p,portability v,verbose
wrapper system 1: timeout | f,foreground k,kill-after= p,preserve-status s,signal= v,verbose
wrapper system: stdbuf | e,error= i,input= o,output=
wrapper system: nice | n,adjustment=
wrapper: numactl | N,cpunodebind= i,interleave= l,localalloc m,membind= C,physcpubind= p,preferred=
    preferred-many= weighted-interleave=
wrapper system 1: taskset | a,all-tasks c,cpu-list p,pid
wrapper: dumb-init | r,rewrite= c,single-child v,verbose
wrapper: tini | e= p=
wrapper system: setsid | c,ctty f,fork w,wait
wrapper system: ionice | c,class= n,classdata= t,ignore
wrapper: xvfb-run | f,auth-file= a,auto-servernum e,error-file= s,server-args= n,server-num= w,wait=
wrapper: pixi/run | e,environment= m,manifest-path= platform=
wrapper: pdm/run | p,project=
wrapper: conda/run mamba/run micromamba/run | a,attach= cwd= e,env= n,name= p,prefix= r,root-prefix= v,verbose
wrapper: uv/run | cache-dir= config-file= directory= env-file= extra= extra-index-url= group= index=
    index-url= m,module no-extra= no-group= only-group= package= project= p,python= s,script w,with=
    with-editable= with-requirements=
wrapper: nsys/profile nsys/launch | b,backtrace= c,capture-range= capture-range-end= cpuctxsw=
    cuda-graph-trace= cuda-memory-usage= cudabacktrace= y,delay= d,duration= e,env-var= event-sample= export=
    f,force-overwrite= gpu-metrics-device= gpu-metrics-devices= gpu-metrics-frequency= n,inherit-environment
    kill= mpi-impl= nic-metrics= p,nvtx-capture= o,output= python-sampling= pytorch= s,sample=
    samples-per-backtrace= sampling-frequency= session-new= w,show-output= start-later= stats= x,stop-on-exit=
    t,trace= trace-fork-before-exec= wait=
wrapper: ncu | cache-control= clock-control= config-file= csv-separator= devices= o,export= f,force-overwrite
    i,import= kernel-id= k,kernel-name= kernel-name-base= c,launch-count= s,launch-skip= log-file= metrics=
    mode= nvtx-exclude= nvtx-include= page= replay-mode= section= section-folder= set= target-processes=
wrapper: nvprof | analysis-metrics= devices= events= o,export-profile= f,force-overwrite kernels= log-file=
    metrics= s,print-summary timeout=
wrapper single-dash: rocprof | basenames= ctx-limit= d= heartbeat= i= input= o= t= timestamp=
wrapper: rocprofv3 | i,input= kernel-include-regex= d,output-directory= o,output-file= f,output-format= pmc=
wrapper single-dash: vtune amplxe-cl | app-working-dir= collect= data-limit= duration= finalization-mode=
    knob= r= result-dir=
wrapper: compute-sanitizer | launch-timeout= log-file= print-limit= save= tool=
wrapper single-dash: strace | e= o= p= s=
wrapper: perf/stat | e,event= o,output= r,repeat=
wrapper: perf/record | call-graph= c,count= e,event= F,freq= o,output=
wrapper: kernprof | l,line-by-line o,outfile= p,prof-mod=
posix: bash dash ksh sh
starter: horovodrun -m/horovod.runner.launch
starter: accelerate aprun bede-mpirun fastsrun ibrun jsrun prun
elsewhere: aprun bede-mpirun charmrun clush dask fastsrun flux horovodrun ibrun jsrun parallel pdsh prun ray
    spark-submit ssh torchx
stand-in: aws axolotl colossalai curl dask dig dvc enroot fuser getent git gsutil hf horovodrun host hostname
    huggingface-cli ifconfig ip ipython java jsrun julia jupyter killall litgpt lsof matlab ml mlflow module
    nc ncat netcat netstat nproc nslookup nvidia-smi pdsh ping pip pip3 pkill pypy3 ray rocm-smi Rscript rsync
    sacct sacctmgr sattach sbatch sbcast scancel scontrol scp sgather sglang sinfo sleep spack sprio squeue
    sreport ss ssh sshare sstat sudo telnet tensorboard unknown vllm wandb wget
answers: conda getent hostname ifconfig ip mamba micromamba nproc nvidia-smi ray rocm-smi scontrol sleep srun
    uv
unshown: activate bc clear cmake conda curl dcgmi deactivate dig dos2unix envsubst free fuser g++ gcc getfacl
    git host htop jq killall lfs lmod lscpu lsof make mamba micromamba ml module modulecmd nc ncat netcat
    netstat newgrp nslookup numactl nvcc nvidia-smi ping pip pip3 pkill quota rocm-smi rsync sacct sacctmgr
    sattach sbcast scancel scontrol scp sgather sinfo spack sprio squashfuse squeue sreport ss ssh sshare
    sstat telnet top tput tree ulimit unsquashfs uv wget which
silent: enroot ml module sacct sbatch scancel sinfo squeue sstat unsquashfs
helper: [ awk cat chmod cp cut date dd df du echo enroot env false find free grep head hostname ib_write_bw id
    ip ls lscpu mkdir module mv nproc nvidia-smi pip pkill printenv printf ps pwd rm rocm-smi rsync scontrol
    sed sleep sort stat sync tail tar tee test touch tr true ulimit uname unzip venv wc which whoami
prints: date df du echo free hostname id lscpu nproc nvidia-smi printf ps pwd uname uptime whoami
looks: awk basename cat cut dirname expr getent grep head ip jq ls readlink realpath sed seq shuf sort ss tail
    tr uniq wc
closes: (( : [ [[ conda deactivate declare exit export false jobstats kill ml module printenv rocm-smi sacct
    seff set sinfo sleep squeue sstat sync test true type wait which
brief: : cat cd date df echo env exit export free groups head hostname id ls lscpu lspci ml module nproc
    nvidia-smi printenv printf pwd rocm-smi set sleep source tail true ulimit uname unset wait which whoami
quick: : cd date echo exit export hostname ls mkdir printf true unset
last: : cat cp date echo gzip hostname ls mkdir mv nvidia-smi printf rm rmdir rsync sacct seff squeue tar
    touch true
builtin: (( : [ [[ cd declare exit export let local readonly return set shift shopt trap ulimit umask unset
environment: . conda deactivate ml module source
keeps: exec fg kill read sleep tail tee trap wait
passes-on: cat head sort tail tee
files: cat cp gunzip gzip ls mv rm rsync scp
serial: bcftools bedtools blastn blastp bowtie bowtie2 bwa cellranger cmake conda cp curl cutadapt fastp
    fastqc featureCounts gatk git gunzip gzip hisat2 kallisto make makeblastdb mamba minimap2 multiqc mv
    nextflow picard pip plink plink2 quast rsync salmon samtools snakemake STAR tar trimmomatic unzip wget
polls: sacct sbatch scontrol sinfo squeue sstat
waits: code-server jupyter jupyter-lab jupyter-notebook sleep tail
computes: [ awk basename bc cut dirname echo expr getent grep head hostname ip nproc printf scontrol sed sort
    srun tail test tr true uniq wc
fetches: curl docker/pull git/clone podman/pull apptainer/pull singularity/pull wget
downloads: conda/create conda/install hf/download huggingface-cli/download mamba/create mamba/install
    micromamba/create micromamba/install pip/download pip/install uv/pip/install
"""
