/* The file-system calls of a process, counted below one folder; at the k-th happens what was asked for.
 *
 * Built with cc into a shared object and put before libc by LD_PRELOAD. Nothing happens until faults_arm(): then
 * every call that changes what is below `prefix` (and, with `needle`, whose path contains it) has a number, from 1.
 * A path is looked at as it was given, a descriptor by /proc/self/fd. What is forked inherits the count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_BEFORE, KILL_AFTER, KILL_HALF, FAIL, FAIL_ON, SHORT, SHORT_ON, RAISE };
enum { OPEN = 1, WRITE = 2, FLUSH = 4, MOVE = 8, REMOVE = 16, MAKE = 32, CUT = 64, CLOSE = 128, MODE = 256 };

static volatile int armed;
static int action, code, kinds, trace_fd = -1;
static long target;
static long counted;
static char prefix[PATH_MAX], needle[256];

#define REAL(name) ({ static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name); real; })

void faults_arm(const char *folder, const char *part, long k, int what, int which, int of, int trace) {
    snprintf(prefix, sizeof prefix, "%s", folder);
    snprintf(needle, sizeof needle, "%s", part);
    target = k, action = what, code = which, kinds = of, trace_fd = trace, counted = 0, armed = 1;
}

void faults_disarm(void) { armed = 0; }

long faults_counted(void) { return counted; }

static void die(int number) {
    syscall(SYS_kill, getpid(), number);
    if (number == SIGKILL) for (;;) pause();
}

static int below(const char *path) {
    size_t length = strlen(prefix);
    if (strncmp(path, prefix, length) || (path[length] && path[length] != '/')) return 0;
    return !needle[0] || strstr(path, needle) != NULL;
}

static int descriptor(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    out[length > 0 ? length : 0] = 0;
    return length > 0;
}

static int resolve(int folder, const char *path, char *out) {
    if (!path) return descriptor(folder, out);
    char base[PATH_MAX] = "";
    if (path[0] != '/') {
        if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !descriptor(folder, base)) return 0;
        strncat(base, "/", sizeof base - strlen(base) - 1);
    }
    snprintf(out, PATH_MAX, "%s%s", base, path);
    return 1;
}

/* The number of this call where it counts, 0 where it does not; raises and kills that come before it, now. */
static long number(int kind, const char *name, int folder, const char *path) {
    if (!armed || !(kinds & kind)) return 0;
    int saved = errno;
    char whole[PATH_MAX * 2];
    long k = 0;
    if (resolve(folder, path, whole) && below(whole)) {
        k = __sync_add_and_fetch(&counted, 1);
        if (trace_fd >= 0) {
            char line[PATH_MAX * 2 + 64];
            int length = snprintf(line, sizeof line, "%ld %s %s\n", k, name, whole);
            syscall(SYS_write, trace_fd, line, length);
        }
        if (k == target && action == KILL_BEFORE) die(SIGKILL);
        if (k == target && action == RAISE) die(code);
        if (k == target && action == KILL_HALF && kind != WRITE) die(SIGKILL);
    }
    errno = saved;
    return k;
}

static int fails(long k) {
    if (!k) return 0;
    int now = (action == FAIL && k == target) || (action == FAIL_ON && k >= target) || (action == SHORT_ON && k > target);
    if (now) errno = code;
    return now;
}

static void after(long k) {
    if (k && k == target && action == KILL_AFTER) die(SIGKILL);
}

#define AROUND(kind, name, folder, path, call) \
    long k = number(kind, name, folder, path); \
    if (fails(k)) return -1; \
    __typeof__(call) result = call; \
    after(k); \
    return result

/* Of a write: half of it, where half was asked for. */
#define PART(size) ((k && k == target && action >= KILL_HALF && action != FAIL && action != FAIL_ON && (size) > 1 \
                     && action != RAISE) ? (size) / 2 : (size))
#define AROUND_WRITE(name, fd, size, call) \
    long k = number(WRITE, name, fd, NULL); \
    if (fails(k)) return -1; \
    size_t part = PART(size); \
    ssize_t result = call; \
    if (k && k == target && action == KILL_HALF) die(SIGKILL); \
    after(k); \
    return result

#define WRITES(flags) ((flags) & (O_CREAT | O_TRUNC) || ((flags) & O_ACCMODE) != O_RDONLY)
#define OPENS(name, folder, real) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); } \
    if (!WRITES(flags)) return real; \
    AROUND(OPEN, name, folder, path, real)

int open(const char *path, int flags, ...) { OPENS("open", AT_FDCWD, REAL(open)(path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPENS("open", AT_FDCWD, REAL(open64)(path, flags, mode)); }
int openat(int at, const char *path, int flags, ...) { OPENS("openat", at, REAL(openat)(at, path, flags, mode)); }
int openat64(int at, const char *path, int flags, ...) { OPENS("openat", at, REAL(openat64)(at, path, flags, mode)); }
int creat(const char *path, mode_t mode) { AROUND(OPEN, "creat", AT_FDCWD, path, REAL(creat)(path, mode)); }

ssize_t write(int fd, const void *data, size_t size) {
    AROUND_WRITE("write", fd, size, REAL(write)(fd, data, part));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    AROUND_WRITE("pwrite", fd, size, REAL(pwrite)(fd, data, part, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    AROUND_WRITE("pwrite", fd, size, REAL(pwrite64)(fd, data, part, at));
}
ssize_t writev(int fd, const struct iovec *data, int size) {
    AROUND_WRITE("writev", fd, size, REAL(writev)(fd, data, part));
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    AROUND_WRITE("sendfile", to, size, (ssize_t)syscall(SYS_sendfile, to, from, at, part));
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    AROUND_WRITE("sendfile", to, size, (ssize_t)syscall(SYS_sendfile, to, from, at, part));
}
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags) {
    AROUND_WRITE("copy_file_range", to, size, REAL(copy_file_range)(from, a, to, b, part, flags));
}

int fsync(int fd) { AROUND(FLUSH, "fsync", fd, NULL, REAL(fsync)(fd)); }
int fdatasync(int fd) { AROUND(FLUSH, "fdatasync", fd, NULL, REAL(fdatasync)(fd)); }
int ftruncate(int fd, off_t size) { AROUND(CUT, "ftruncate", fd, NULL, REAL(ftruncate)(fd, size)); }
int ftruncate64(int fd, off64_t size) { AROUND(CUT, "ftruncate", fd, NULL, REAL(ftruncate64)(fd, size)); }
int posix_fallocate(int fd, off_t from, off_t size) {
    long k = number(CUT, "posix_fallocate", fd, NULL);
    if (fails(k)) return code;
    int result = REAL(posix_fallocate)(fd, from, size);
    after(k);
    return result;
}
int fchmod(int fd, mode_t mode) { AROUND(MODE, "fchmod", fd, NULL, REAL(fchmod)(fd, mode)); }
int chmod(const char *path, mode_t mode) { AROUND(MODE, "chmod", AT_FDCWD, path, REAL(chmod)(path, mode)); }

int rename(const char *from, const char *to) { AROUND(MOVE, "rename", AT_FDCWD, to, REAL(rename)(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    AROUND(MOVE, "renameat", b, to, REAL(renameat)(a, from, b, to));
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    AROUND(MOVE, "renameat2", b, to, (int)syscall(SYS_renameat2, a, from, b, to, flags));
}
int link(const char *from, const char *to) { AROUND(MAKE, "link", AT_FDCWD, to, REAL(link)(from, to)); }
int symlink(const char *from, const char *to) { AROUND(MAKE, "symlink", AT_FDCWD, to, REAL(symlink)(from, to)); }
int unlink(const char *path) { AROUND(REMOVE, "unlink", AT_FDCWD, path, REAL(unlink)(path)); }
int unlinkat(int at, const char *path, int flags) {
    AROUND(REMOVE, "unlinkat", at, path, REAL(unlinkat)(at, path, flags));
}
int rmdir(const char *path) { AROUND(REMOVE, "rmdir", AT_FDCWD, path, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { AROUND(MAKE, "mkdir", AT_FDCWD, path, REAL(mkdir)(path, mode)); }
int mkdirat(int at, const char *path, mode_t mode) { AROUND(MAKE, "mkdirat", at, path, REAL(mkdirat)(at, path, mode)); }

int close(int fd) {
    if (!armed || !(kinds & CLOSE)) return REAL(close)(fd);
    int saved = errno, flags = fcntl(fd, F_GETFL);
    errno = saved;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) return REAL(close)(fd);
    long k = number(CLOSE, "close", fd, NULL);
    int result = REAL(close)(fd); /* what is closed is closed, even where that fails */
    if (fails(k)) return -1;
    after(k);
    return result;
}
