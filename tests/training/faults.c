/* A file system that fails on command, for tests of a trainer: loaded by LD_PRELOAD.

Calls for paths that have $FAULT_UNDER in them fail as the text of the file $FAULT says: an open for writing
("open"), "write", "fsync" or "rename", with the number of the error after it; "slow" and "partial" writes have
none. An empty file is a healthy file system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static __thread int asking;

static int is_meant(const char *path) { return path && getenv("FAULT_UNDER") && strstr(path, getenv("FAULT_UNDER")); }

static int is_open_file_meant(int file)
{
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    ssize_t length = readlink(name, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return is_meant(path);
}

/* Whether this call fails now; errno is set. */
static int fails(const char *call)
{
    char text[64] = "", what[32] = "";
    int number = 0, kept = errno;
    if (asking || !getenv("FAULT"))
        return 0;
    asking = 1;
    FILE *file = fopen(getenv("FAULT"), "r");
    if (file) {
        if (fgets(text, sizeof text, file))
            sscanf(text, "%31s %d", what, &number);
        fclose(file);
    }
    asking = 0;
    errno = kept;
    if (strcmp(what, call))
        return 0;
    errno = number;
    return 1;
}

#define REAL(name) (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int refused(const char *path, int flags)
{
    return (flags & O_ACCMODE) != O_RDONLY && !asking && is_meant(path) && fails("open");
}

#define OPEN(name, parameters, arguments)                              \
    int name parameters                                                \
    {                                                                  \
        int mode = 0;                                                  \
        if (flags & (O_CREAT | O_TMPFILE)) {                           \
            va_list more;                                              \
            va_start(more, flags);                                     \
            mode = va_arg(more, int);                                  \
            va_end(more);                                              \
        }                                                              \
        return refused(path, flags) ? -1 : (REAL(name)) arguments;     \
    }

OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPEN(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

ssize_t write(int file, const void *bytes, size_t count)
{
    if (is_open_file_meant(file)) {
        if (fails("write"))
            return -1;
        if (fails("slow"))
            usleep(200000);
        if (count > 1 && fails("partial"))
            count /= 2;
    }
    return (REAL(write))(file, bytes, count);
}

int fsync(int file) { return is_open_file_meant(file) && fails("fsync") ? -1 : (REAL(fsync))(file); }

int rename(const char *from, const char *to) { return is_meant(to) && fails("rename") ? -1 : (REAL(rename))(from, to); }
