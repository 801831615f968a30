"""The texts with which Slurm refuses a job, and what each of them means: a table for `refusal`.

The texts are Slurm's: slurm_errno.c of 20.11 to 26.05 for those of slurmctld, opt.c, sbatch's own files and
gres.c for those that sbatch says before it asks anybody, and the names of squeue(1), "JOB REASON CODES".
"""

from dataclasses import dataclass

GPUS = "gpus gpus-per-node gpus-per-task gres"
MEMORY = "mem mem-per-cpu mem-per-gpu"
SIZE = f"nodes ntasks ntasks-per-node cpus-per-task {GPUS} {MEMORY}"
WHO = "account partition qos"


@dataclass(frozen=True)
class Rule:
    """A text of Slurm's, as a pattern; groups of it stand in the other fields as {0}, {1}.

    Attributes:
        text: The pattern of the whole text.
        means: The same in plain words.
        options: The options that it can be about, by long name.
        fix: What to do.
        general: Whether Slurm may add it to another text, which says more.
    """

    text: str
    means: str
    options: str
    fix: str
    general: bool = False


# The first that matches counts. What a limit is about comes before the text that every limit ends with.
RULES = (
    # --- slurmctld: where and for whom
    Rule(
        r"invalid partition specified: (.+)",
        "this cluster has no partition '{0}'",
        "partition",
        "sinfo -s lists those that you can see",
    ),
    Rule(
        r"Invalid partition name specified",
        "this cluster has no such partition",
        "partition",
        "sinfo -s lists those that you can see",
        general=True,
    ),
    Rule(
        r"No partition specified or system default partition",
        "the job names no partition, and the cluster has none for such jobs",
        "partition",
        "add --partition; sinfo -s lists them",
    ),
    Rule(
        r"Required partition not available \(inactive or drain\)|Partition in DOWN state",
        "the partition takes no jobs at present: its staff has closed it",
        "partition",
        "wait, or choose another: sinfo -s shows those that are up",
    ),
    Rule(
        r"User's group not permitted to use this partition",
        "the partition is for groups that you are not in",
        "partition",
        "choose another, or ask the site's staff for access",
    ),
    Rule(
        r"Invalid account or account/partition combination specified",
        "you can't charge a job here to this account; if none is given, you have no default one here",
        "account partition",
        "sacctmgr show associations user=$USER lists your accounts; give one with --account",
    ),
    Rule(
        r"Invalid or unknown association",
        "you have no account on this cluster that can be charged",
        "account partition",
        "ask the site's staff, or give another --account",
    ),
    Rule(
        r"Multiple partition job request not supported when a partition is set in the association",
        "your account is bound to partitions, so a job may name only one",
        "partition account",
        "name one partition",
    ),
    Rule(
        r"Invalid (?:qos specification|QOS specification, relative .*)",
        "there is no such QOS, or your account may not use it here",
        "qos account partition",
        "sacctmgr show associations user=$USER format=account,partition,qos lists yours",
    ),
    Rule(
        r"Requested account has breached requested QOS usage threshold",
        "the account has used up what this QOS grants it",
        "qos account",
        "use another QOS, or wait for the next period",
    ),
    Rule(
        r"Invalid wckey specification",
        "there is no such wckey for you",
        "wckey",
        "remove it, or ask the site's staff",
    ),
    Rule(
        r"Requested reservation is invalid",
        "there is no such reservation, or the job asks for nodes that are not in it",
        "reservation nodelist partition",
        "scontrol show reservation lists them",
    ),
    Rule(
        r"Access denied to requested reservation",
        "the reservation is for other users or accounts",
        "reservation account",
        "scontrol show reservation shows who may use it",
    ),
    Rule(
        r"Requested reservation (?:not usable now|is in use)"
        r"|Job can not start due to maintenance reservation\.",
        "the reservation can't be used now",
        "reservation",
        "scontrol show reservation shows when it begins and ends",
    ),
    Rule(
        r"Access/permission denied",
        "you may not do this here: often a partition or an account that is not yours",
        f"{WHO} reservation",
        "ask the site's staff which of them you may use",
    ),
    # --- slurmctld: how much
    Rule(
        r"Requested node configuration is not available",
        "no node of the partition has all of this at once, or the partition has fewer nodes",
        f"partition {SIZE} constraint nodelist exclude exclusive",
        "compare with: sinfo -N -o '%N %c CPUs %m MB %G %f'",
    ),
    Rule(
        r"Requested topology configuration is not available",
        "no part of the network has so many nodes side by side",
        "nodes switches",
        "ask for fewer nodes, or remove the option",
    ),
    Rule(
        r"Requested partition configuration not available now",
        "the partition can't hold such a job, or not now",
        f"partition time {SIZE}",
        "scontrol show partition shows its limits",
    ),
    Rule(
        r"Node count specification invalid",
        "the partition does not allow so many, or so few, nodes in a job",
        "nodes partition qos",
        "scontrol show partition: MinNodes, MaxNodes",
    ),
    Rule(
        r"More processors requested than permitted|CPU count specification invalid",
        "these are more CPUs than a node or the partition has for a job",
        "cpus-per-task ntasks ntasks-per-node nodes partition",
        "ask for fewer; sinfo -o '%P %c' shows the CPUs of a node",
    ),
    Rule(
        r"Task count specification invalid",
        "tasks and nodes do not go together: there must be at least one task a node",
        "ntasks ntasks-per-node nodes",
        "set --ntasks-per-node, and leave --ntasks out",
    ),
    Rule(
        r"Memory required by task is not available",
        "the job asks for more memory than a job may have here, by node or by CPU",
        f"{MEMORY} cpus-per-task partition",
        "scontrol show config | grep MaxMemPer; scontrol show partition",
    ),
    Rule(
        r"Requested time limit is invalid \(missing or exceeds some limit\)",
        "the time limit is over that of the partition, of the QOS or of the account, or has to be given here",
        "time partition qos account",
        "scontrol show partition: MaxTime",
    ),
    Rule(
        r"Invalid time-min specification \(exceeds job's time or other limits\)",
        "the shortest time is longer than the time limit",
        "time-min time",
        "make --time-min shorter than --time",
    ),
    Rule(
        r"Requested nodes not in this partition",
        "these nodes are not in the partition",
        "nodelist partition",
        "sinfo -p PARTITION -N lists its nodes",
    ),
    Rule(
        r"Invalid node name specified",
        "there is no node of this name",
        "nodelist exclude",
        "sinfo -N lists the nodes",
    ),
    Rule(
        r"Required node not available \(down, drained or reserved\)",
        "a node that the job names is down, drained or reserved",
        "nodelist",
        "sinfo -R shows why; leave the choice of nodes to Slurm",
    ),
    Rule(
        r"Invalid (?:preferred )?feature specification",
        "no node has this feature",
        "constraint prefer",
        "sinfo -o '%N %f' lists the features of the nodes",
    ),
    Rule(
        r"Requested GRES option unsupported by configured SelectType plugin",
        "this cluster can't count GPUs by job, task or socket, only by node",
        GPUS,
        "use --gpu-request gres",
    ),
    Rule(
        r"Invalid GRES specification \(with and without type identification\)",
        "GPUs are asked for with a type and without one in the same job",
        GPUS,
        "write the type in all of these options, or in none",
    ),
    Rule(
        r"Duplicate generic resource \(gres\) specification",
        "a resource is named twice",
        "gres",
        "keep one of them",
    ),
    Rule(
        r"Insufficient GRES available in allocation",
        "a step asks for more GPUs than its job has",
        GPUS,
        "ask for no more than the job has",
    ),
    Rule(
        r"RestrictedCoresPerGPU: .*",
        "the site keeps some CPUs of a node for jobs with GPUs, and this job asks for more than is left",
        f"cpus-per-task {GPUS}",
        "ask for fewer CPUs a GPU",
    ),
    Rule(
        r"Invalid license specification",
        "there is no such license here, or not so many of them",
        "licenses",
        "scontrol show licenses lists them",
    ),
    Rule(r"Licenses currently unavailable", "these licenses are all in use", "licenses", "wait for them"),
    Rule(
        r"Invalid job array specification",
        "the array is no list of indices, or an index is over the site's MaxArraySize",
        "array",
        "scontrol show config | grep MaxArraySize; indices must be below it",
    ),
    Rule(
        r"Job dependency problem|Circular job dependency",
        "a job that this one waits for is not known, or the condition is not written as Slurm reads it",
        "dependency",
        "write afterok:JOBID; squeue --me lists your jobs",
    ),
    Rule(
        r"(?:Invalid time specified|Incompatible begin and deadline time specification)",
        "the job could not end before its deadline, or the times contradict each other",
        "begin deadline time time-min",
        "move the deadline, or make the job shorter",
    ),
    Rule(
        r"Invalid --nice value", "only the site's staff may raise a priority", "nice", "use a positive value"
    ),
    Rule(
        r"Pathname of a file, directory or other parameter too long",
        "a name is longer than Slurm takes",
        "job-name output error chdir comment",
        "make it shorter",
    ),
    Rule(
        r"Task distribution specification invalid",
        "there is no such distribution",
        "distribution",
        "as block:cyclic",
    ),
    Rule(
        r"Invalid Trackable RESource \(TRES\) specification",
        "no such resource is counted here",
        GPUS,
        "sacctmgr show tres lists them",
    ),
    Rule(r"Burst Buffer .*", "the burst buffer can't be had", "bb bbf", "scontrol show burstbuffer"),
    Rule(
        r"Job cannot be submitted without the current working directory specified\.",
        "the folder that you stand in is gone or unreadable",
        "chdir",
        "cd to a folder that is there",
    ),
    # --- slurmctld: limits of accounts and QOS, by the names of reasons (squeue(1), "JOB REASON CODES")
    Rule(
        r"((?:Assoc|QOS)\w*(?:Submit|MaxJobs|GrpJobs)\w*|MaxSubmitJobsPerAccount|MaxJobsPerAccount)",
        "you, or your account, have as many jobs as the limit {0} allows",
        "array account qos",
        "wait until some have ended: squeue --me",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*WallDuration\w*|(?:QOS|Association)TimeLimit)",
        "the time limit is over the limit {0} of the account or QOS",
        "time account qos",
        "make --time shorter, or use another QOS",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*Minutes\w*|(?:Assoc|QOS)\w*GrpWall\w*|Max\w*RunMinsPer\w+)",
        "resources times hours are over the limit {0}: the account has no such budget left",
        f"time account qos {SIZE}",
        "ask for less or for a shorter time; sshare shows what was used",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*(?:GRES|Gres)\w*|MaxGRESPerAccount)",
        "the GPUs are over the limit {0} of the account or QOS",
        f"{GPUS} nodes account qos",
        "ask for fewer GPUs, or use another QOS",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*Mem\w*|MaxMemoryPerAccount|MaxMemPerLimit)",
        "the memory is over the limit {0} of the account or QOS",
        f"{MEMORY} nodes account qos",
        "ask for less memory, or use another QOS",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*(?:Cpu|CPU)\w*|MaxCpuPerAccount)",
        "the CPUs are over the limit {0} of the account or QOS, or below its minimum",
        "cpus-per-task ntasks-per-node nodes account qos",
        "ask for another number of CPUs, or use another QOS",
    ),
    Rule(
        r"((?:Assoc|QOS)\w*Node\w*|MaxNodePerAccount)",
        "the nodes are over the limit {0} of the account or QOS, or below its minimum",
        "nodes account qos",
        "ask for another number of nodes, or use another QOS",
    ),
    Rule(
        r"((?:Assoc|QOS)(?:Grp|Max|Min)\w+|Max\w+PerAccount)",
        "the job is over the limit {0} of the account or QOS",
        f"{SIZE} time account qos",
        "ask for less, or use another QOS",
    ),
    Rule(
        r"Job violates accounting/QOS policy \(job submit limit, user's size and/or time limits\)",
        "the job, or the number of your jobs, is over a limit of your account or QOS",
        f"time array {SIZE} account qos",
        "sacctmgr show associations user=$USER and sacctmgr show qos show the limits",
        general=True,
    ),
    # --- slurmctld: nothing to do with this job
    Rule(
        r"MaxJobCount limit reached",
        "the cluster is full of jobs and takes no new ones for now",
        "",
        "try again later",
    ),
    Rule(
        r"System submissions disabled|Requested operation is presently disabled|Rate limit exceeded.*",
        "the site takes no jobs at the moment",
        "",
        "try again later; the message of the day may say why",
    ),
    Rule(
        r"Unable to contact slurm controller.*|Communication connection failure|Socket timed out.*"
        r""
        r"|get_addr_info: .*|slurm_set_addr: .*|Unable to establish control machine address|No error"
        r"|Zero Bytes were transmitted or received"
        r"|Protocol authentication error|Incompatible versions of client and server code",
        "Slurm's controller can't be reached from here",
        "",
        "scontrol ping; if it is down, tell the site's staff; see squeue --me before trying again",
    ),
    Rule(
        r"resolve_ctls_from_dns_srv: .*|fetch_config: .*|_establish_config_source: .*"
        r"|Could not establish a configuration source|s_p_parse_file: .*|ClusterName needs to be specified"
        r"|Unable to process configuration file",
        "Slurm's commands are here, but not the configuration of a cluster",
        "",
        "submit on a login node of the cluster, or set SLURM_CONF",
    ),
    Rule(
        r".*\b[Mm]unged?\b.*",
        "this machine can't prove to Slurm who you are: its munge daemon does not answer",
        "",
        "tell the site's staff; munge -n shows what is wrong",
    ),
    Rule(
        r"(?:Invalid user id|Invalid account|Invalid group ID.*)$",
        "the controller does not know you",
        "",
        "ask the site's staff whether your user is known on the controller",
    ),
    # --- sbatch itself, before it asks
    Rule(
        r"--mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive\."
        r"|SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU, and SLURM_MEM_PER_NODE are mutually exclusive\.",
        "memory is asked for in more than one way",
        MEMORY,
        "keep one of them",
    ),
    Rule(
        r"(?:Requested (?:mem|cpus)_per_tres=\S+ but did not request any GPU\.)",
        "memory or CPUs are asked for by GPU, but no GPU is asked for",
        f"mem-per-gpu cpus-per-gpu {GPUS}",
        "ask for GPUs, or for memory by node: --mem",
    ),
    Rule(
        r"--gpus-per-node and --gres=gpu are mutually exclusive\.",
        "GPUs are asked for twice",
        "gpus-per-node gres",
        "keep one of them",
    ),
    Rule(
        r"Failed to validate job spec, --gpus < -N",
        "there are fewer GPUs than nodes",
        "gpus nodes",
        "use --gpus-per-node, which counts for each node",
    ),
    Rule(
        r"Failed to (?:validate job spec|ensure).*--gpus-per-task.*"
        r"|.*--gpus-per-task or --tres-per-task used.*",
        "GPUs a task, tasks and GPUs of the job do not go together",
        f"{GPUS} ntasks ntasks-per-node nodes cpus-per-task cpus-per-gpu",
        "use --gpus-per-node and --ntasks-per-node",
    ),
    Rule(
        r"Failed to (?:validate job spec|ensure).*",
        "the numbers of GPUs, nodes and tasks contradict each other",
        f"{GPUS} nodes ntasks ntasks-per-node ntasks-per-gpu",
        "use --gpus-per-node and --nodes alone",
    ),
    Rule(
        r"Maximum node count (\d+) is less than minimum node count (\d+)",
        "the range of nodes is the wrong way round",
        "nodes",
        "write --nodes={0}-{1}",
    ),
    Rule(r'"(.+)" is not a valid node count', "'{0}' is no number of nodes", "nodes", "write 4, or 2-4"),
    Rule(
        r"_parse_single_range: Invalid range: `(.+)'",
        "the range {0} is the wrong way round",
        "nodelist exclude",
        "write the lower number first",
    ),
    Rule(
        r"memory allocation failure",  # which is not what has happened: trial on 22.05
        "sbatch could not read a list of nodes",
        "nodelist exclude",
        "write node[1-4],node7",
        general=True,
    ),
    Rule(
        r".*--(\S+) is mutually exclusive with --(\S+?)(?: and SLURM_\w+)?",
        "--{0} and --{1} exclude each other",
        "{0} {1}",
        "keep one of them",
    ),
    Rule(
        r".*?--([a-z-]+)\S*(?:, --([a-z-]+)\S*)*,? and --([a-z-]+)\S* (?:options )?are mutually exclusive.*",
        "these options exclude each other",
        "{0} {1} {2}",
        "keep one of them",
    ),
    Rule(
        r"Invalid generic resource \(gres\) specification",
        "GPUs or shards are asked for in a way that the cluster does not know, or both together",
        GPUS,
        "write --gpus-per-node=4, --gres=gpu:4 or --gres=shard:16; sinfo -o %G shows what nodes have",
        general=True,
    ),
    Rule(
        r"Invalid --([a-z-]+) specification.*|Invalid numeric value .+ for --([a-z-]+)\.?"
        r"|invalid --([a-z-]+)=\S* option",
        "the value is not one that --{0} takes",
        "{0}",
        "man sbatch shows its forms",
    ),
    Rule(
        r'unrecognized --([a-z-]+) argument "(.*)", see .*',
        "--{0} takes no '{1}'",
        "{0}",
        "sbatch --{0}=help shows what it takes",
    ),
    Rule(
        r"'(.+)' can't be reached now, or it is an invalid entry for --cluster\..*",
        "there is no cluster '{0}', or it can't be reached",
        "clusters",
        "sacctmgr list clusters lists them",
    ),
    Rule(
        r"Problem talking to (?:the )?database.*",
        "Slurm's database can't be reached",
        "clusters",
        "try again later; without --clusters it is not needed",
        general=True,
    ),
    Rule(
        r"Invalid directive found in batch script: (.+)",
        "'{0}' stands in a line of #SBATCH, but is no option: a value with a blank needs double quotes",
        "",
        "put the value in double quotes",
    ),
    Rule(
        r"(?:sbatch: )?unrecognized option '--([^'=]+).*'",
        "this Slurm has no --{0}: another release has, or a plugin that is not here, as pyxis",
        "{0}",
        "sbatch --version; remove the option",
    ),
    Rule(
        r"(?:sbatch: )?option '--([^'=]+).*' is ambiguous.*",
        "--{0} is short for several options",
        "{0}",
        "write the option out",
    ),
    Rule(
        r"(?:sbatch: )?option '--([^'=]+).*' doesn't allow an argument",
        "--{0} takes no value",
        "{0}",
        "write --{0} alone",
    ),
    Rule(
        r"(?:sbatch: )?option '--([^'=]+).*' requires an argument",
        "--{0} needs a value",
        "{0}",
        "write --{0}=VALUE",
    ),
    Rule(r".*Unmatched `.` in \[(.*)\]", "a quote is opened and not closed: {0}", "", "close it"),
    Rule(
        r"Batch script contains DOS line breaks.*",
        "the script has the line ends of DOS",
        "",
        "sed -i 's/\\r$//' SCRIPT",
    ),
    Rule(
        r"This does not look like a batch script\..*|Batch script (?:is empty|contains only whitespace)!",
        "it is no script: its first line must be #!/bin/bash",
        "",
        "put #!/bin/bash into the first line",
    ),
    Rule(
        r"Cannot find GPU specification.*|Gres format wrong.*",
        "the site wants GPUs with their type",
        GPUS,
        "write --gpus-per-node=TYPE:N; sinfo -o %G shows the types",
    ),
)
