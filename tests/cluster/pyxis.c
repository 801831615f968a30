/*
 * A stand-in for NVIDIA's pyxis in tests: srun's --container-* options, without containers.
 *
 * A task with --container-image gets a file system of its own, made of what an image would hold (the node's system
 * folders and the paths named in plugstack.conf) and of its mounts; nothing else of the node is there. The image is
 * any file; IMAGE.env beside it holds the variables that the image and Enroot's hooks set, one NAME=VALUE a line.
 *
 * What is refused and which variable wins is as pyxis 0.24 does it (its README, args.c and pyxis_slurmstepd.c);
 * stricter: the source of a mount must be absolute. Images of a registry, saved and named containers are left out.
 *
 * Arguments in plugstack.conf: root=FOLDER (empty, where a file system is put together), contents=PATH (of every
 * image, at the same path; may be repeated), home=PATH (mounted unless --no-container-mount-home is given, as a
 * site's enroot.conf may have it).
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis, 1)

enum { IMAGE, MOUNTS, WORKDIR, ENV, TEXTS };

static char *text[TEXTS];
static bool mount_home = true;
static char *image_environment = NULL;

static int take(int which, const char *value, int remote)
{
	(void)remote;
	free(text[which]);
	text[which] = strdup(value);
	return text[which] ? 0 : -1;
}

static int take_home(int value, const char *none, int remote)
{
	(void)none, (void)remote;
	mount_home = value;
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
	slurm_error("pyxis: this stand-in cannot name, save or unshare a container");
	return -1;
}

struct spank_option spank_options[] = {
	{"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "[pyxis] the image", 1, IMAGE, take},
	{"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] bind mounts", 1, MOUNTS, take},
	{"container-workdir", "PATH", "[pyxis] working directory", 1, WORKDIR, take},
	{"container-env", "NAME[,NAME...]", "[pyxis] variables of the job that win", 1, ENV, take},
	{"container-mount-home", NULL, "[pyxis] mount the home", 0, 1, take_home},
	{"no-container-mount-home", NULL, "[pyxis] do not mount the home", 0, 0, take_home},
	{"container-remap-root", NULL, "[pyxis] be root", 0, 0, accept_only},
	{"no-container-remap-root", NULL, "[pyxis] do not be root", 0, 0, accept_only},
	{"container-entrypoint", NULL, "[pyxis] run the entrypoint", 0, 0, accept_only},
	{"no-container-entrypoint", NULL, "[pyxis] do not run the entrypoint", 0, 0, accept_only},
	{"container-entrypoint-log", NULL, "[pyxis] print the entrypoint's output", 0, 0, accept_only},
	{"container-writable", NULL, "[pyxis] a writable file system", 0, 0, accept_only},
	{"container-readonly", NULL, "[pyxis] a read-only file system", 0, 0, accept_only},
	{"container-name", "NAME", "[pyxis] name of the container", 1, 0, refuse},
	{"container-save", "PATH", "[pyxis] save the container", 1, 0, refuse},
	{"container-unshare", "NS[,NS...]", "[pyxis] namespaces", 1, 0, refuse},
	SPANK_OPTIONS_TABLE_END};

static int fail(const char *what, const char *path)
{
	slurm_error("pyxis: %s: %s: %s", what, path, strerror(errno));
	return -1;
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

/* --- Before the task becomes the user's --- */

/* The image must be a file that the user can read; what is beside it is kept for later. */
static int read_image(uid_t uid, gid_t gid)
{
	static char environment[64 * 1024];
	char path[PATH_MAX];
	ssize_t size = 0;
	int fd;

	if (strspn(text[IMAGE], "./") == 0) {
		slurm_error("pyxis: '%s' is an image of a registry, not a path: it starts with neither / nor .", text[IMAGE]);
		return -1;
	}
	setfsgid(gid);
	setfsuid(uid);
	fd = open(text[IMAGE], O_RDONLY | O_CLOEXEC);
	setfsuid(0);
	setfsgid(0);
	if (fd < 0)
		return fail("failed to open the image", text[IMAGE]);
	close(fd);
	snprintf(path, sizeof(path), "%s.env", text[IMAGE]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		size = read(fd, environment, sizeof(environment) - 1);
		close(fd);
	}
	environment[size > 0 ? size : 0] = '\0';
	image_environment = environment;
	return 0;
}

/* A folder or an empty file to mount upon, with the folders above it. */
static int make_place(const char *path, bool is_folder)
{
	char part[PATH_MAX];
	int fd;

	snprintf(part, sizeof(part), "%s", path);
	for (char *at = strchr(part + 1, '/'); at; at = strchr(at + 1, '/')) {
		*at = '\0';
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return fail("couldn't make", part);
		*at = '/';
	}
	if (is_folder)
		return mkdir(part, 0755) < 0 && errno != EEXIST ? fail("couldn't make", part) : 0;
	fd = open(part, O_CREAT | O_RDONLY | O_CLOEXEC, 0644);
	if (fd < 0)
		return fail("couldn't make", part);
	close(fd);
	return 0;
}

/* Show a path of the node at a place of the new file system. */
static int show(const char *root, const char *source, const char *target, bool read_only)
{
	char place[PATH_MAX];
	struct stat found;

	if (stat(source, &found) < 0)
		return fail("mount source path does not exist", source);
	snprintf(place, sizeof(place), "%s%s", root, target);
	if (make_place(place, S_ISDIR(found.st_mode)) < 0)
		return -1;
	if (mount(source, place, NULL, MS_BIND | MS_REC, NULL) < 0)
		return fail("couldn't mount", place);
	if (read_only && mount(NULL, place, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
		return fail("couldn't mount read-only", place);
	return 0;
}

/* SRC[:DST[:FLAG[+FLAG...]]]; without DST, the same path. */
static int show_mount(const char *root, char *entry)
{
	static const char known[] = "ro,rw,bind,rbind,private,rprivate,slave,rslave,nosuid,nodev,noexec";
	char given[PATH_MAX], *rest = entry;
	const char *source, *target, *flag;
	bool read_only = false;

	snprintf(given, sizeof(given), "%s", entry);
	source = strsep(&rest, ":");
	target = rest ? strsep(&rest, ":") : source;
	if (*source != '/' || *target != '/') {
		slurm_error("pyxis: --container-mounts: invalid format, both paths must be absolute: '%s'", given);
		return -1;
	}
	while (rest && (flag = strsep(&rest, "+"))) {
		if (!listed(known, flag)) {
			slurm_error("pyxis: --container-mounts: invalid format, unknown flag '%s': '%s'", flag, given);
			return -1;
		}
		read_only = read_only || !strcmp(flag, "ro");
	}
	return show(root, source, target, read_only);
}

/* What every image holds: the system's folders, among them links such as /bin, but none of Slurm's settings. */
static int show_system(const char *root, uid_t uid, gid_t gid)
{
	static const char *const folders[] = {"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys", "/dev"};
	char place[PATH_MAX], link[PATH_MAX], options[64];
	struct stat found;

	for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++) {
		if (lstat(folders[i], &found) < 0)
			continue;
		if (S_ISLNK(found.st_mode)) {
			ssize_t size = readlink(folders[i], link, sizeof(link) - 1);
			link[size > 0 ? size : 0] = '\0';
			snprintf(place, sizeof(place), "%s%s", root, folders[i]);
			if (symlink(link, place) < 0)
				return fail("couldn't link", place);
		} else if (show(root, folders[i], folders[i], false) < 0) {
			return -1;
		}
	}
	snprintf(place, sizeof(place), "%s/etc/slurm", root);
	if (stat(place, &found) == 0 && mount("none", place, "tmpfs", 0, NULL) < 0)
		return fail("couldn't cover", place);
	snprintf(place, sizeof(place), "%s/tmp", root);
	snprintf(options, sizeof(options), "mode=755,uid=%u,gid=%u", uid, gid);
	if (make_place(place, true) < 0 || mount("none", place, "tmpfs", 0, options) < 0)
		return fail("couldn't mount", place);
	return 0;
}

static int enter(const char *root)
{
	if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return fail("couldn't enter", root);
	return 0;
}

static int make_container(spank_t sp, int count, char **arguments)
{
	const char *root = "/mnt";
	uid_t uid;
	gid_t gid;

	if (spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_GID, &gid) != ESPANK_SUCCESS)
		return -1;
	if (read_image(uid, gid) < 0)
		return -1;
	for (int i = 0; i < count; i++)
		if (!strncmp(arguments[i], "root=", 5))
			root = arguments[i] + 5;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", root, "tmpfs", 0, "mode=755") < 0)
		return fail("no file system of its own", root);
	if (show_system(root, uid, gid) < 0)
		return -1;
	for (int i = 0; i < count; i++) {
		bool wanted = !strncmp(arguments[i], "contents=", 9) || (mount_home && !strncmp(arguments[i], "home=", 5));
		const char *path = arguments[i] + strcspn(arguments[i], "/");
		if (wanted && show(root, path, path, false) < 0)
			return -1;
	}
	for (char *entry, *rest = text[MOUNTS]; rest && (entry = strsep(&rest, ","));)
		if (show_mount(root, entry) < 0)
			return -1;
	return enter(root);
}

int slurm_spank_task_init_privileged(spank_t sp, int count, char **arguments)
{
	mode_t of_job;
	int status;

	if (!text[IMAGE]) {
		if (text[MOUNTS] || text[WORKDIR] || text[ENV])
			slurm_error("pyxis: ignoring --container-mounts, -workdir and -env: no --container-image");
		return 0;
	}
	of_job = umask(022);
	status = make_container(sp, count, arguments);
	umask(of_job);
	return status;
}

/* --- As the user, in the new file system --- */

static int set(spank_t sp, const char *name, const char *value, bool overwrite)
{
	spank_err_t status = spank_setenv(sp, name, value, overwrite);

	if (status == ESPANK_SUCCESS || status == ESPANK_ENV_EXISTS)
		return 0;
	slurm_error("pyxis: failed to set %s: %s", name, spank_strerror(status));
	return -1;
}

/* The image's variables win over the job's, but for those of --container-env. */
static int import_environment(spank_t sp)
{
	static const char *const locale[] = {"LANG", "LANGUAGE", "LC_ALL"};

	for (size_t i = 0; i < sizeof(locale) / sizeof(*locale); i++)
		if (!listed(text[ENV], locale[i]))
			spank_unsetenv(sp, locale[i]);
	for (char *line, *rest = image_environment; rest && (line = strsep(&rest, "\n"));) {
		char *value = strchr(line, '=');
		if (!value)
			continue;
		*value++ = '\0';
		if (set(sp, line, value, !listed(text[ENV], line)) < 0)
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
	(void)count, (void)arguments;
	if (!text[IMAGE])
		return 0;
	if (import_environment(sp) < 0 || set_ranks(sp) < 0)
		return -1;
	if (chdir(text[WORKDIR] ? text[WORKDIR] : "/") < 0)
		return fail("couldn't chdir to", text[WORKDIR] ? text[WORKDIR] : "/");
	return 0;
}
