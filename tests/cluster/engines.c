/*
 * A stand-in for two plugins of Slurm in tests: that of Shifter, and the container engine of CSCS.
 *
 * Shifter's adds --image, --volume and --module to sbatch and srun, and names the image in the job's variables
 * (doc/command/shifter.rst of NERSC/shifter). The engine's --environment takes a file, or a name below ~/.edf; a task
 * then has the image's variables over the job's, and starts in the image's folder (edf.md and run.md of
 * eth-cscs/cscs-docs). Here the file holds lines NAME=VALUE, the variables of the image, and that folder is /.
 */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(engines, 1)

enum { IMAGE, ENVIRONMENT, OTHER };

static char *given[2];

static int take(int which, const char *value, int remote)
{
	(void)remote;
	if (which == OTHER)
		return 0;
	free(given[which]);
	given[which] = strdup(value);
	return given[which] ? 0 : -1;
}

static struct spank_option options[] = {
	{"image", "IMAGE", "[shifter] the image", 1, IMAGE, take},
	{"volume", "SRC:DST", "[shifter] mounts", 1, OTHER, take},
	{"module", "NAME", "[shifter] modules of the site", 1, OTHER, take},
	{"environment", "FILE|NAME", "[engine] the environment", 1, ENVIRONMENT, take},
	SPANK_OPTIONS_TABLE_END};

/* A table of the name spank_options would leave sbatch without them (spank(8)). */
int slurm_spank_init(spank_t sp, int count, char **arguments)
{
	(void)count, (void)arguments;
	for (struct spank_option *option = options; option->name; option++)
		if (spank_option_register(sp, option) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

int slurm_spank_user_init(spank_t sp, int count, char **arguments)
{
	(void)count, (void)arguments;
	if (given[IMAGE] && spank_setenv(sp, "SLURM_SPANK_SHIFTER_IMAGE", given[IMAGE], 1) != ESPANK_SUCCESS)
		return -1;
	return 0;
}

int slurm_spank_task_init(spank_t sp, int count, char **arguments)
{
	char home[PATH_MAX], path[PATH_MAX + 128], line[PATH_MAX];
	FILE *file;

	(void)count, (void)arguments;
	if (!given[ENVIRONMENT])
		return 0;
	snprintf(path, sizeof(path), "%s", given[ENVIRONMENT]);
	if (!strchr(path, '/') && spank_getenv(sp, "HOME", home, sizeof(home)) == ESPANK_SUCCESS)
		snprintf(path, sizeof(path), "%s/.edf/%.60s.toml", home, given[ENVIRONMENT]);
	if (!(file = fopen(path, "r"))) {
		slurm_error("engine: no environment %s: %s", path, strerror(errno));
		return -1;
	}
	while (fgets(line, sizeof(line), file)) {
		char *value = strchr(line, '=');
		line[strcspn(line, "\n")] = '\0';
		if (value) {
			*value++ = '\0';
			spank_setenv(sp, line, value, 1);
		}
	}
	fclose(file);
	return chdir("/");
}
