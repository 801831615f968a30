/*
 * A stand-in for NVIDIA's pyxis and Enroot in tests: srun's --container-* options, without images.
 *
 * A task with --container-image gets a file system of its own, made of what an image would hold (the node's system
 * folders and the paths named in plugstack.conf) and of its mounts; nothing else of the node is there. What is refused,
 * what is left behind and which variable wins is as pyxis 0.24 and Enroot 4.1 do it (pyxis: README, args.c,
 * pyxis_slurmstepd.c; Enroot: runtime.sh, hooks 10-shadow, 98-nvidia and 50-slurm-pytorch; and seen running). Left out:
 * images of a registry, saved containers, namespaces, users within.
 *
 * An image is a file "squashfs ... end"; one without its end is truncated. IMAGE.env beside it says what is in it:
 *   NAME=VALUE      a variable of the image
 *   workdir PATH    where its programs start; / if it is not given
 *   create SECONDS  how long it takes to unpack it; 0 if it is not given
 *   remove SECONDS [NODE]  how long it takes to remove a container of it, on all nodes or on one
 *
 * Arguments in plugstack.conf: root=FOLDER (empty, where a file system is put together), store=FOLDER (of unpacked
 * containers: each node's are in the folder of its name, as on its disk), nvidia=FOLDER (a node has NVIDIA's tools if
 * a file there has its name), contents=PATH (of every image, at the same path; may be repeated), home=PATH (mounted
 * unless --no-container-mount-home is given, as a site's enroot.conf may have it).
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

/* --- Options, and the variables that act like them --- */

enum { IMAGE, MOUNTS, WORKDIR, ENV, NAME, TEXTS };
enum { MOUNT_HOME, WRITABLE, REMAP_ROOT, ENTRYPOINT, FLAGS };

static char *text[TEXTS];
static int flag[FLAGS] = {-1, -1, -1, -1}; /* not given */

/* What srun refuses of --container-mounts. */
static int refused(const char *mounts)
{
	char *copy = strdup(mounts), *rest = copy;
	int status = 0;

	for (char *entry; !status && (entry = strsep(&rest, ","));) {
		char *parts = entry, *source = strsep(&parts, ":"), *target = parts ? strsep(&parts, ":") : source;
		if (!*source || !*target) {
			slurm_error("pyxis: --container-mounts: invalid format: %s", mounts);
			status = -1;
		} else if ((strspn(source, "./") == 0 && strcmp(source, "tmpfs") && strcmp(source, "umount")) ||
			   strspn(target, "./") == 0) {
			slurm_error("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
			slurm_error("pyxis: could not add mount entry: %s:%s", source, target);
			status = -1;
		}
	}
	free(copy);
	return status;
}

static int take(int which, const char *value, int remote)
{
	if (which == MOUNTS && !remote && refused(value) < 0)
		return -1;
	free(text[which]);
	text[which] = strdup(value);
	return text[which] ? 0 : -1;
}

/* A flag is given as twice its number, and one more for "no". */
static int take_flag(int which, const char *none, int remote)
{
	(void)none, (void)remote;
	flag[which / 2] = which % 2 == 0;
	return 0;
}

static int accept_only(int value, const char *none, int remote)
{
	(void)value, (void)none, (void)remote;
	return 0;
}

static int refuse(int value, const char *none, int remote)
{
	(void)value, (void)none, (void)remote;
	slurm_error("pyxis: this stand-in cannot save or unshare a container");
	return -1;
}

struct spank_option spank_options[] = {
	{"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image", 1, IMAGE, take},
	{"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mounts", 1, MOUNTS, take},
	{"container-workdir", "PATH", "[pyxis] working directory", 1, WORKDIR, take},
	{"container-env", "NAME[,NAME...]", "[pyxis] variables of the job that win", 1, ENV, take},
	{"container-name", "NAME", "[pyxis] name of the container, which is kept", 1, NAME, take},
	{"container-mount-home", NULL, "[pyxis] mount the home", 0, 2 * MOUNT_HOME, take_flag},
	{"no-container-mount-home", NULL, "[pyxis] do not mount the home", 0, 2 * MOUNT_HOME + 1, take_flag},
	{"container-remap-root", NULL, "[pyxis] be root", 0, 2 * REMAP_ROOT, take_flag},
	{"no-container-remap-root", NULL, "[pyxis] do not be root", 0, 2 * REMAP_ROOT + 1, take_flag},
	{"container-entrypoint", NULL, "[pyxis] run the entrypoint", 0, 2 * ENTRYPOINT, take_flag},
	{"no-container-entrypoint", NULL, "[pyxis] do not run the entrypoint", 0, 2 * ENTRYPOINT + 1, take_flag},
	{"container-entrypoint-log", NULL, "[pyxis] print the entrypoint's output", 0, 0, accept_only},
	{"container-writable", NULL, "[pyxis] a writable file system", 0, 2 * WRITABLE, take_flag},
	{"container-readonly", NULL, "[pyxis] a read-only file system", 0, 2 * WRITABLE + 1, take_flag},
	{"container-save", "PATH", "[pyxis] save the container", 1, 0, refuse},
	{"container-unshare", "NS[,NS...]", "[pyxis] namespaces", 1, 0, refuse},
	SPANK_OPTIONS_TABLE_END};

/* PYXIS_CONTAINER_IMAGE and the like count where the option is not given: in the step of a batch script, too. */
int slurm_spank_init_post_opt(spank_t sp, int count, char **arguments)
{
	static const char *const texts[TEXTS] = {"IMAGE", "MOUNTS", "WORKDIR", "ENV", "NAME"};
	static const char *const flags[FLAGS] = {"MOUNT_HOME", "WRITABLE", "REMAP_ROOT", "ENTRYPOINT"};
	char name[64], value[PATH_MAX];

	(void)count, (void)arguments;
	if (spank_context() != S_CTX_REMOTE)
		return 0;
	for (int i = 0; i < TEXTS; i++) {
		snprintf(name, sizeof(name), "PYXIS_CONTAINER_%s", texts[i]);
		if (!text[i] && spank_getenv(sp, name, value, sizeof(value)) == ESPANK_SUCCESS)
			take(i, value, 1);
	}
	for (int i = 0; i < FLAGS; i++) {
		snprintf(name, sizeof(name), "PYXIS_CONTAINER_%s", flags[i]);
		if (flag[i] < 0 && spank_getenv(sp, name, value, sizeof(value)) == ESPANK_SUCCESS)
			flag[i] = strchr("1tyTY", *value) != NULL;
	}
	if (!text[IMAGE] && (text[MOUNTS] || text[WORKDIR]))
		slurm_error("pyxis: ignoring --container-mounts and -workdir: no --container-image");
	return 0;
}

/* --- What all functions need --- */

static int fail(const char *what, const char *path)
{
	slurm_error("pyxis: %s: %s: %s", what, path, strerror(errno));
	return -1;
}

static const char CREATING[] = "failed to create container filesystem for image: ";
static const char STARTING[] = "container start failed with error code: 1";

/* What pyxis says of Enroot's end, and then shows of its words: lines, and an object of the last. */
static int enroot_fails(const char *doing, const char *object, const char *said, const char *of)
{
	char lines[1024], *rest = lines, *line;

	slurm_error("pyxis: %s%s", doing, object);
	slurm_error("pyxis: printing enroot log file:");
	snprintf(lines, sizeof(lines), "%s", said);
	while ((line = strsep(&rest, "\n")))
		slurm_error("pyxis:     %s%s", line, rest ? "" : of);
	return -1;
}

/* The value of NAME=VALUE among the arguments of plugstack.conf. */
static const char *argument(int count, char **arguments, const char *name)
{
	size_t length = strlen(name);

	for (int i = 0; i < count; i++)
		if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=')
			return arguments[i] + length + 1;
	return "/nonexistent";
}

/* Whether a comma-separated list holds a name. */
static bool listed(const char *list, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
		if (strcspn(at, ",") == length && !strncmp(at, name, length))
			return true;
	return false;
}

/* --- Once for each step on a node: the image, and the container's folder --- */

/* What the tasks of a node share: the first one creates the container, the last one removes it. */
static struct {
	atomic_int begun, ended;
	bool made;
} *shared;
static int lock = -1; /* of `shared`; released when a task that holds it is killed */
static char container[PATH_MAX];
static char environment[64 * 1024]; /* lines of IMAGE.env, and those of hooks */
static char image_workdir[PATH_MAX] = "/";
static int create_s, remove_s;
static enum { GOOD, MISSING, INVALID, TRUNCATED } image = MISSING;

/* Run a command of sh for the container, `$1`; whether it ended well. To Slurm it is one of the step's programs,
   as enroot is, and gets its signals. */
static bool run(const char *command, int seconds)
{
	char script[PATH_MAX], *const shell[] = {"sh", "-c", script, "enroot", container, NULL};
	sigset_t none;
	int status = 0;
	pid_t child;

	snprintf(script, sizeof(script), command, seconds);
	child = fork();
	if (child == 0) {
		for (int number = 1; number < NSIG; number++)
			signal(number, SIG_DFL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execv("/bin/sh", shell);
		_exit(127);
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	return child > 0 && status == 0;
}

static ssize_t read_file(const char *path, char *into, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, into, size - 1);

	if (fd >= 0)
		close(fd);
	into[length > 0 ? length : 0] = '\0';
	return length;
}

/* As the user, who must be able to read it. */
int slurm_spank_user_init(spank_t sp, int count, char **arguments)
{
	char path[PATH_MAX], contents[256], host[HOST_NAME_MAX], name[PATH_MAX], node[64] = "";
	uint32_t job = 0, step = 0;
	int seconds = 0;
	ssize_t size;

	if (!text[IMAGE])
		return 0;
	lock = memfd_create("pyxis", MFD_CLOEXEC);
	if (lock < 0 || ftruncate(lock, sizeof(*shared)) < 0)
		return fail("no shared memory", "memfd");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, lock, 0);
	if (shared == MAP_FAILED)
		return fail("no shared memory", "mmap");
	spank_get_item(sp, S_JOB_ID, &job);
	spank_get_item(sp, S_JOB_STEPID, &step);
	gethostname(host, sizeof(host));
	snprintf(name, sizeof(name), "%u.%u", job, step);
	snprintf(container, sizeof(container), "%s/%s/pyxis_%.200s", argument(count, arguments, "store"), host,
		 text[NAME] ? text[NAME] : name);
	size = read_file(text[IMAGE], contents, sizeof(contents));
	if (size >= 0)
		image = strncmp(contents, "squashfs", 8) ? INVALID : strstr(contents, "end") ? GOOD : TRUNCATED;
	snprintf(path, sizeof(path), "%s.env", text[IMAGE]);
	read_file(path, environment, sizeof(environment));
	for (char *line = environment; line && *line; line = strchr(line, '\n'), line += line != NULL) {
		sscanf(line, "create %d", &create_s);
		if (sscanf(line, "remove %d %63s", &seconds, node) == 1 || !strcmp(node, host))
			remove_s = seconds;
		sscanf(line, "workdir %4000s", image_workdir);
	}
	return 0;
}

/* Unpack the image into the container's folder, which must not be there. */
static int create(spank_t sp)
{
	char force[8];

	if (text[NAME] && access(container, F_OK) == 0)
		return 0; /* the existing one is used, with its old image */
	if (strspn(text[IMAGE], "./") == 0) /* of a registry, and there is none */
		return enroot_fails("failed to import docker image: ", text[IMAGE],
				    "[INFO] Querying registry for permission grant\ncurl: (6) Could not resolve host: ",
				    "registry-1.docker.io");
	if (image == MISSING)
		return enroot_fails(CREATING, text[IMAGE], "[ERROR] No such file or directory: ", text[IMAGE]);
	if (image == INVALID)
		return enroot_fails(CREATING, text[IMAGE], "[ERROR] Invalid image format: ", text[IMAGE]);
	if (access(container, F_OK) == 0) {
		if (spank_getenv(sp, "ENROOT_FORCE_OVERRIDE", force, sizeof(force)) != ESPANK_SUCCESS || !*force)
			return enroot_fails(CREATING, text[IMAGE], "[ERROR] File already exists: ", container);
		run("rm -rf \"$1\"", 0);
	}
	if (!run("mkdir -p \"$1\" && sleep %d", create_s)) {
		slurm_error("pyxis: %s%s", CREATING, text[IMAGE]);
		return -1;
	}
	if (image == TRUNCATED)
		return enroot_fails(CREATING, text[IMAGE],
				    "[INFO] Extracting squashfs filesystem...\nRead on filesystem failed because EOF\n"
				    "FATAL ERROR: File system corruption detected", "");
	return 0;
}

/* The value of a variable of the image, up to the end of its line; NULL if it has none. */
static const char *in_image(const char *name)
{
	size_t length = strlen(name);

	for (const char *line = environment; line; line = strchr(line, '\n'), line += line != NULL)
		if (!strncmp(line, name, length) && line[length] == '=')
			return line + length + 1;
	return NULL;
}

/* Whether the hook for NVIDIA has something to do: a variable of the job counts before that of the image. */
static bool wants_gpus(spank_t sp)
{
	static const char *const name = "NVIDIA_VISIBLE_DEVICES";
	const char *of_image = in_image(name);
	char value[256] = "";

	if (spank_getenv(sp, name, value, sizeof(value)) != ESPANK_SUCCESS && of_image)
		snprintf(value, sizeof(value), "%.*s", (int)strcspn(of_image, "\n"), of_image);
	return *value && strcmp(value, "void");
}

/* What can go wrong once the image is unpacked: Enroot's hooks, and the settings that pyxis writes for it. */
static int start(spank_t sp, int count, char **arguments)
{
	char path[PATH_MAX], host[HOST_NAME_MAX], locale[64];
	char *mounts = text[MOUNTS] ? strdup(text[MOUNTS]) : NULL;

	for (char *entry, *rest = mounts; rest && (entry = strsep(&rest, ","));) {
		entry[strcspn(entry, ":")] = '\0';
		if (*entry == '/' && access(entry, F_OK) < 0 && errno == ENOENT) {
			slurm_error("pyxis: --container-mounts: source path does not exist: %s", entry);
			return -1;
		}
	}
	free(mounts);
	if (text[MOUNTS] && strchr(text[MOUNTS], '"')) /* they are words of a bash script, in double quotes */
		return enroot_fails(STARTING, "", "[ERROR] Invalid argument: /tmp/.enroot_config_XXXXXX", "");
	if (text[MOUNTS] && strpbrk(text[MOUNTS], "$`"))
		return enroot_fails(STARTING, "", "/tmp/.enroot_config_XXXXXX: line 2: ", "x: unbound variable");
	if (spank_getenv(sp, "LC_ALL", locale, sizeof(locale)) == ESPANK_SUCCESS && *locale && !strchr(locale, '.'))
		return enroot_fails(STARTING, "", /* in one of 20 starts, with a locale that the node lacks */
				    "bash: warning: setlocale: LC_ALL: cannot change locale\n"
				    "[ERROR] Invalid argument: /tmp/.enroot_config_XXXXXX", "");
	gethostname(host, sizeof(host));
	snprintf(path, sizeof(path), "%s/%s", argument(count, arguments, "nvidia"), host);
	if (wants_gpus(sp) && access(path, F_OK) < 0)
		return enroot_fails(STARTING, "",
				    "[ERROR] Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container\n"
				    "[ERROR] /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1", "");
	return 0;
}

/* The first task of a node creates the container; the others wait for it. */
static int start_once(spank_t sp, int count, char **arguments)
{
	if (lockf(lock, F_LOCK, 0) < 0)
		return fail("couldn't lock", "memfd");
	if (atomic_fetch_add(&shared->begun, 1) == 0) {
		shared->made = create(sp) == 0 && start(sp, count, arguments) == 0;
	}
	if (!shared->made)
		slurm_error("pyxis: container was not started successfully by another task");
	lockf(lock, F_ULOCK, 0);
	return shared->made ? 0 : -1;
}

/* The last task of a node removes the container, unless it has a name. Only SIGKILL ends that. */
int slurm_spank_task_exit(spank_t sp, int count, char **arguments)
{
	uint32_t tasks = 1;

	(void)count, (void)arguments;
	if (!shared)
		return 0;
	spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);
	if (atomic_fetch_add(&shared->ended, 1) == (int)tasks - 1 && !text[NAME] && access(container, F_OK) == 0)
		run("trap '' HUP INT TERM USR1 USR2; sleep %d && rm -rf \"$1\"", remove_s);
	return 0;
}

/* --- The tasks --- */

#include "pyxis_files.h"

int slurm_spank_task_init_privileged(spank_t sp, int count, char **arguments)
{
	mode_t of_job;
	int status;

	if (!shared)
		return 0;
	of_job = umask(022);
	status = start_once(sp, count, arguments) < 0 || show_all(sp, count, arguments) < 0 ? -1 : 0;
	umask(of_job);
	return status;
}

/* --- The environment of a task, as the user in the new file system --- */

static int set(spank_t sp, const char *name, const char *value, bool overwrite)
{
	spank_err_t status = spank_setenv(sp, name, value, overwrite);

	if (status == ESPANK_SUCCESS || status == ESPANK_ENV_EXISTS)
		return 0;
	slurm_error("pyxis: failed to set %s: %s", name, spank_strerror(status));
	return -1;
}

/* Enroot's file of variables gets a line NAME=VALUE; a line break in the value begins another line. */
static void add_line(const char *name, const char *value)
{
	size_t size = strlen(environment);

	snprintf(environment + size, sizeof(environment) - size, "\n%s=%s\n", name, value);
}

/* The variables of --container-env; in an image with PyTorch what the hook adds, which knows only of the step. */
static void complete_environment(spank_t sp)
{
	char name[256], value[4096];

	if (!in_image("PATH"))
		add_line("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	for (const char *at = text[ENV]; at && *at; at += strcspn(at, ","), at += *at == ',') {
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, ","), at);
		if (spank_getenv(sp, name, value, sizeof(value)) == ESPANK_SUCCESS && *value)
			add_line(name, value);
	}
	if (in_image("PYTORCH_VERSION") && !in_image("WORLD_SIZE") &&
	    spank_getenv(sp, "SLURM_NTASKS", value, sizeof(value)) == ESPANK_SUCCESS)
		add_line("WORLD_SIZE", value);
}

/* The image's variables win over the job's, but for those of --container-env. */
static int import_environment(spank_t sp)
{
	static const char *const locale[] = {"LANG", "LANGUAGE", "LC_ALL"};

	for (size_t i = 0; i < sizeof(locale) / sizeof(*locale); i++)
		if (!listed(text[ENV], locale[i]))
			spank_unsetenv(sp, locale[i]);
	for (char *line, *rest = environment; rest && (line = strsep(&rest, "\n"));) {
		char *value = strchr(line, '=');
		if (!value || strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789") != (size_t)(value - line))
			continue;
		*value++ = '\0';
		if (strncmp(line, "ENROOT_", 7) && set(sp, line, value, !listed(text[ENV], line)) < 0)
			return -1;
	}
	return 0;
}

/* In an image with PyTorch each task has its rank in torch's names too. */
static int set_ranks(spank_t sp)
{
	static const char *const names[][2] = {{"SLURM_PROCID", "RANK"}, {"SLURM_LOCALID", "LOCAL_RANK"}};
	char value[64];

	if (spank_getenv(sp, "PYTORCH_VERSION", value, sizeof(value)) != ESPANK_SUCCESS)
		return 0;
	for (size_t i = 0; i < 2; i++)
		if (spank_getenv(sp, names[i][0], value, sizeof(value)) != ESPANK_SUCCESS || set(sp, names[i][1], value, true) < 0)
			return -1;
	return 0;
}

int slurm_spank_task_init(spank_t sp, int count, char **arguments)
{
	const char *folder = text[WORKDIR] ? text[WORKDIR] : image_workdir;

	(void)count, (void)arguments;
	if (!shared)
		return 0;
	complete_environment(sp);
	if (import_environment(sp) < 0 || set_ranks(sp) < 0)
		return -1;
	if (chdir(folder) < 0) {
		slurm_error("pyxis: couldn't chdir to %s: %s", folder, strerror(errno));
		return -1;
	}
	return 0;
}
