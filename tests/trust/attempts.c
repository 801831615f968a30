/* System calls that reach out of a sandbox, one after the other; arguments: a process outside, a port, and a socket's name. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#define SESSION -3
#define USER_SESSION -5

static char *files[] = {"socket", "packets", "pipe", "deep/pipe", "shared", 0};
static char page[4096] = "changed";

static void says(const char *name, long result) {
    printf("%s: %s\n", name, result < 0 ? strerror(errno) : "done");
    fflush(stdout);
}

static void to_unix(const char *name, const char *path, int length, int kind) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    memcpy(to.sun_path, path, length);
    int number = socket(AF_UNIX, kind, 0);
    long done = number < 0 ? -1 : connect(number, (void *)&to, offsetof(struct sockaddr_un, sun_path) + length);
    if (done == 0) done = write(number, "changed", 7);
    says(name, done);
}

static void to_port(const char *name, int port, int kind) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int number = socket(AF_INET, kind, 0);
    long done = number < 0 ? -1 : connect(number, (void *)&to, sizeof to);
    if (done == 0) done = write(number, "changed", 7);
    says(name, done);
}

static long child_of(long flags) {
    long child = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    if (child > 0) waitpid(child, 0, 0);
    return child;
}

int main(int count, char **words) {
    int other = count > 1 ? atoi(words[1]) : 1, port = count > 2 ? atoi(words[2]) : 9, number;
    long key;
    char abstract[100] = "";

    to_unix("stream to a socket's path", "socket", 7, SOCK_STREAM);
    to_unix("packet to a socket's path", "packets", 8, SOCK_DGRAM);
    if (count > 3) snprintf(abstract + 1, sizeof abstract - 1, "%s", words[3]);
    to_unix("stream to a socket without a path", abstract, 1 + strlen(abstract + 1), SOCK_STREAM);
    to_port("stream to a port", port, SOCK_STREAM);
    to_port("packet to a port", port, SOCK_DGRAM);
    says("vsock", socket(40, SOCK_STREAM, 0));
    says("raw socket", socket(AF_INET, SOCK_RAW, 1));
    says("packets of the link", socket(17, SOCK_RAW, 0));
    says("socket of algorithms", socket(38, SOCK_SEQPACKET, 0));
    number = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    struct { struct nlmsghdr head; struct ifinfomsg about; } down = {
        {sizeof down, RTM_NEWLINK, NLM_F_REQUEST, 1, 0}, {.ifi_index = 1, .ifi_change = 1}};
    says("loopback set down", number < 0 ? -1 : send(number, &down, sizeof down, 0));

    says("new key", syscall(SYS_add_key, "user", "sbatchgen-lab", "changed", 7, SESSION));
    says("new key of the user", syscall(SYS_add_key, "user", "sbatchgen-lab", "changed", 7, USER_SESSION));
    key = syscall(SYS_request_key, "user", "sbatchgen-lab", 0, SESSION);
    says("key found", key);
    if (key < 0) key = syscall(SYS_keyctl, 10, SESSION, "user", "sbatchgen-lab", 0);
    says("key searched", key);
    says("key revoked", syscall(SYS_keyctl, 3, key));
    says("keyring cleared", syscall(SYS_keyctl, 7, SESSION));

    says("signal", kill(other, SIGKILL));
    says("signal to a group", kill(-other, SIGKILL));
    number = syscall(SYS_pidfd_open, other, 0);
    says("signal by a descriptor", number < 0 ? -1 : syscall(SYS_pidfd_send_signal, number, SIGKILL, 0, 0));
    says("signal by an owner of a pipe", ({ int ends[2]; pipe(ends); fcntl(ends[0], F_SETOWN, other); }));
    says("niceness", setpriority(PRIO_PROCESS, other, 19));
    says("niceness of all", other > 1 ? setpriority(PRIO_PGRP, other, 19) : -1);
    says("priority of disks", syscall(SYS_ioprio_set, 1, other, 3 << 13));
    says("processors", ({ cpu_set_t one; CPU_ZERO(&one); CPU_SET(0, &one); sched_setaffinity(other, sizeof one, &one); }));
    says("limits", ({ struct rlimit most = {1, 1}; prlimit(other, RLIMIT_CPU, &most, 0); }));
    says("trace", other > 1 ? ptrace(PTRACE_ATTACH, other, 0, 0) : -1);
    says("trace of the first process", ptrace(PTRACE_ATTACH, 1, 0, 0));
    struct iovec part = {page, 8};
    says("memory of the first process", process_vm_writev(1, &part, 1, &part, 1, 0));

    says("mount", mount("none", "/tmp", "tmpfs", 0, ""));
    says("mount made writable", mount("none", "/usr", 0, MS_REMOUNT | MS_BIND, ""));
    says("unmount", umount2("/usr", MNT_DETACH));
    says("tree of mounts", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    says("user namespace", unshare(CLONE_NEWUSER));
    says("mount namespace", unshare(CLONE_NEWNS));
    says("child in a user namespace", child_of(CLONE_NEWUSER | CLONE_NEWNS));
    says("child of clone3", syscall(SYS_clone3, (long[11]){CLONE_NEWUSER}, 88));
    number = open("/proc/1/ns/mnt", O_RDONLY);
    says("namespace of the first process", number < 0 ? -1 : setns(number, 0));
    says("pivot_root", syscall(SYS_pivot_root, ".", "."));
    says("chroot", chroot("."));
    says("file by a handle", ({
        char about[144] = {128}; int mount; name_to_handle_at(AT_FDCWD, ".", (void *)about, &mount, 0);
        open_by_handle_at(AT_FDCWD, (void *)about, O_RDONLY);
    }));

    says("bpf", syscall(SYS_bpf, 0, &(union bpf_attr){.map_type = 2, .key_size = 4, .value_size = 8, .max_entries = 1}, 72));
    says("io_uring", syscall(SYS_io_uring_setup, 1, (char[120]){0}));
    says("userfaultfd", syscall(SYS_userfaultfd, 1));
    says("perf", syscall(SYS_perf_event_open, &(struct perf_event_attr){.type = 1, .size = 64}, other, -1, -1, 0));
    says("messages of the kernel", syscall(SYS_syslog, 3, page, 1));

    number = open("shared", O_RDONLY);
    says("attributes", ioctl(number, FS_IOC_SETFLAGS, &(long){FS_NODUMP_FL}));
    says("lease", fcntl(number, F_SETLEASE, F_RDLCK));
    says("watch", fcntl(open(".", O_RDONLY), F_NOTIFY, DN_CREATE));
    says("lock", flock(number, LOCK_EX | LOCK_NB));
    says("text for a terminal", ioctl(0, TIOCSTI, "x"));
    says("device", mknod("device", S_IFBLK | 0666, 8 << 8));
    says("owner", chown("shared", 0, 0));
    says("another user", setuid(0));
    says("name of the machine", sethostname("changed", 7));
    says("clock", settimeofday(&(struct timeval){1, 0}, 0));
    for (char **file = files; *file; file++) {
        int mode = open(*file, O_WRONLY | O_NONBLOCK | O_APPEND);
        says(*file, mode < 0 ? -1 : write(mode, "changed", 7));
    }
    return 0;
}
