/*
 * The file system of a task in a container, for pyxis.c, which includes this: what an image holds, and what is mounted.
 * As Enroot has it, all but mounts, /tmp and /run is read-only, the home, a skeleton, among it.
 */

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
		return fail("couldn't mount", source);
	snprintf(place, sizeof(place), "%s%s", root, target);
	if (make_place(place, S_ISDIR(found.st_mode)) < 0)
		return -1;
	if (mount(source, place, NULL, MS_BIND | MS_REC, NULL) < 0)
		return fail("couldn't mount", place);
	if (read_only && mount(NULL, place, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
		return fail("couldn't mount read-only", place);
	return 0;
}

/* An empty folder of the user's. */
static int show_empty(const char *root, const char *target, uid_t uid, gid_t gid)
{
	char place[PATH_MAX], options[64];

	snprintf(place, sizeof(place), "%s%s", root, target);
	snprintf(options, sizeof(options), "mode=755,uid=%u,gid=%u", uid, gid);
	if (make_place(place, true) < 0 || mount("none", place, "tmpfs", 0, options) < 0)
		return fail("couldn't mount", place);
	return 0;
}

/* SRC[:DST[:FLAG[+FLAG...]]]; without DST, the same path. */
static int show_mount(spank_t sp, const char *root, char *entry, uid_t uid, gid_t gid)
{
	char folder[PATH_MAX / 2] = "", path[PATH_MAX], *rest = entry;
	const char *source, *target, *option;
	bool read_only = false;

	source = strsep(&rest, ":");
	target = rest ? strsep(&rest, ":") : source;
	while (rest && *rest && (option = strsep(&rest, "+")))
		read_only = read_only || !strcmp(option, "ro");
	if (*target == '.')
		target += strspn(target, ".");
	if (!strcmp(source, "tmpfs"))
		return show_empty(root, target, uid, gid);
	snprintf(path, sizeof(path), "%s%s", root, target);
	if (!strcmp(source, "umount"))
		return umount2(path, MNT_DETACH) < 0 ? fail("couldn't unmount", target) : 0;
	if (*source == '.')
		spank_getenv(sp, "PWD", folder, sizeof(folder));
	snprintf(path, sizeof(path), "%s%s%s", folder, *folder ? "/" : "", source);
	return show(root, path, target, read_only);
}

/* What every image holds: the system's folders, among them links such as /bin, but nothing of Slurm. */
static int show_system(const char *root, uid_t uid, gid_t gid)
{
	static const char *const folders[] = {"/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys", "/dev"};
	static const char *const programs[] = {"srun", "sbatch", "scontrol", "squeue", "sinfo", "scancel", "sacct"};
	char place[PATH_MAX], link[PATH_MAX];
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
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
		snprintf(place, sizeof(place), "/usr/bin/%s", programs[i]);
		if (access(place, F_OK) == 0 && show(root, "/dev/null", place, true) < 0)
			return -1;
	}
	snprintf(place, sizeof(place), "%s/etc/slurm", root);
	if (stat(place, &found) == 0 && mount("none", place, "tmpfs", 0, NULL) < 0)
		return fail("couldn't cover", place);
	return show_empty(root, "/run", uid, gid);
}

/* The home: a skeleton that nobody can write, as all of the image; what is mounted in it stays as it is. */
static int show_home(spank_t sp, const char *root)
{
	char home[PATH_MAX / 2], place[PATH_MAX];

	if (spank_getenv(sp, "HOME", home, sizeof(home)) != ESPANK_SUCCESS)
		return 0;
	snprintf(place, sizeof(place), "%s%s/.bashrc", root, home);
	if (make_place(place, false) < 0)
		return -1;
	*strrchr(place, '/') = '\0';
	if (mount(place, place, NULL, MS_BIND | MS_REC, NULL) < 0 ||
	    (flag[WRITABLE] != 1 && mount(NULL, place, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0))
		return fail("couldn't protect", place);
	return 0;
}

static int enter(const char *root)
{
	if (flag[WRITABLE] != 1 && mount(NULL, root, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)
		return fail("couldn't protect", root);
	if (chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return fail("couldn't enter", root);
	return 0;
}

/* The mounts of a container in a namespace of the task's own; /tmp is that of the container. */
static int show_all(spank_t sp, int count, char **arguments)
{
	const char *root = argument(count, arguments, "root");
	char place[PATH_MAX + 4], **script = NULL;
	uint32_t step = 0;
	int words = 0;
	uid_t uid;
	gid_t gid;

	if (spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_GID, &gid) != ESPANK_SUCCESS)
		return -1;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    show_empty("", root, uid, gid) < 0)
		return fail("no file system of its own", root);
	if (show_system(root, uid, gid) < 0)
		return -1;
	snprintf(place, sizeof(place), "%s/tmp", container);
	if (make_place(place, true) < 0 || chown(place, uid, gid) < 0 || show(root, place, "/tmp", false) < 0)
		return -1;
	for (int i = 0; i < count; i++) {
		bool wanted = !strncmp(arguments[i], "contents=", 9) || (flag[MOUNT_HOME] != 0 && !strncmp(arguments[i], "home=", 5));
		const char *path = arguments[i] + strcspn(arguments[i], "/");
		if (wanted && show(root, path, path, false) < 0)
			return -1;
	}
	snprintf(place, sizeof(place), "%s%.4000s", root, image_workdir);
	if (make_place(place, true) < 0)
		return -1;
	for (char *entry, *rest = text[MOUNTS]; rest && (entry = strsep(&rest, ","));)
		if (show_mount(sp, root, entry, uid, gid) < 0)
			return -1;
	if (flag[MOUNT_HOME] == 0 && show_home(sp, root) < 0)
		return -1;
	spank_get_item(sp, S_JOB_STEPID, &step);
	if (step == SLURM_BATCH_SCRIPT && spank_get_item(sp, S_JOB_ARGV, &words, &script) == ESPANK_SUCCESS && words &&
	    show(root, script[0], script[0], true) < 0)
		return -1;
	return enter(root);
}
