/* Preloaded into the recorded process. Appends its operations on files below DURABILITY_ROOT to DURABILITY_LOG, in order.

   A record is: size (4 bytes), operation (1), inode (8), offset or size (8), length of two paths (2 + 2), the paths, the data.
   Writes through a mapping are not seen; SQLite makes them only to its -shm file, which a restart rebuilds. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FD 65536
#define MAX_PATH 4096

#define REAL(name) ((__typeof__(&name))real(#name))

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static unsigned char tracked[MAX_FD];
static char root[MAX_PATH];
static size_t root_size;
static int journal = -1;

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "shim: no %s in this C library\n", name);
        abort();
    }
    return found;
}

__attribute__((constructor)) static void begin(void)
{
    const char *folder = getenv("DURABILITY_ROOT"), *log = getenv("DURABILITY_LOG");
    if (!folder || !log || strlen(folder) >= MAX_PATH)
        return;
    strcpy(root, folder);
    root_size = strlen(root);
    journal = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (journal < 0) {
        perror("shim: journal");
        abort();
    }
}

static int below(const char *path)
{
    return journal >= 0 && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static int resolve(int folder, const char *path, char *out)
{
    char base[MAX_PATH];
    if (journal < 0 || !path)
        return 0;
    if (path[0] == '/') {
        if (strlen(path) >= MAX_PATH)
            return 0;
        strcpy(out, path);
        return below(out);
    }
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base))
            return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0)
            return 0;
        base[size] = 0;
    }
    if (!below(base) || snprintf(out, MAX_PATH, "%s/%s", base, path) >= MAX_PATH)
        return 0;
    return 1;
}

static int is_tracked(int fd)
{
    return fd >= 0 && fd < MAX_FD && tracked[fd];
}

static uint64_t inode_of(int fd)
{
    struct stat info;
    return fstat(fd, &info) ? 0 : (uint64_t)info.st_ino;
}

static void put(char operation, uint64_t inode, uint64_t number, const char *one, const char *two, const void *data, size_t size)
{
    uint16_t first = one ? (uint16_t)strlen(one) : 0, second = two ? (uint16_t)strlen(two) : 0;
    uint32_t all = (uint32_t)(25 + first + second + size);
    char head[25];
    memcpy(head, &all, 4);
    head[4] = operation;
    memcpy(head + 5, &inode, 8);
    memcpy(head + 13, &number, 8);
    memcpy(head + 21, &first, 2);
    memcpy(head + 23, &second, 2);
    struct iovec parts[4] = {{head, 25}, {(void *)one, first}, {(void *)two, second}, {(void *)data, size}};
    if (syscall(SYS_writev, journal, parts, 4) != (long)all) {
        perror("shim: journal");
        abort();
    }
}

/* -- opening and closing ---------------------------------------------------------------------------------------------------------- */

static int opened(int folder, const char *path, int flags, mode_t mode)
{
    char whole[MAX_PATH];
    if (!resolve(folder, path, whole)) {
        int other = (int)syscall(SYS_openat, folder, path, flags, mode);
        if (other >= 0 && other < MAX_FD)
            tracked[other] = 0; /* the C library closes some without our close() */
        return other;
    }
    struct stat before;
    pthread_mutex_lock(&lock);
    int existed = !stat(whole, &before);
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    int error = errno;
    if (fd >= 0 && fd < MAX_FD) {
        tracked[fd] = 1;
        if (!existed && (flags & O_CREAT))
            put('C', inode_of(fd), 0, whole, 0, 0, 0);
        else if ((flags & O_TRUNC) && existed && before.st_size)
            put('T', inode_of(fd), 0, 0, 0, 0, 0);
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd)
{
    if (is_tracked(fd))
        tracked[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

static int copied(int fd, int copy)
{
    if (copy >= 0 && copy < MAX_FD && copy != fd)
        tracked[copy] = (unsigned char)is_tracked(fd);
    return copy;
}

int dup(int fd) { return copied(fd, (int)syscall(SYS_dup, fd)); }
int dup2(int fd, int to) { return copied(fd, fd == to ? to : (int)syscall(SYS_dup3, fd, to, 0)); }
int dup3(int fd, int to, int flags) { return copied(fd, (int)syscall(SYS_dup3, fd, to, flags)); }

static int controlled(int fd, int command, long argument)
{
    int result = (int)syscall(SYS_fcntl, fd, command, argument);
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC ? copied(fd, result) : result;
}

#define ARGUMENT(command) \
    va_list rest; \
    va_start(rest, command); \
    long argument = va_arg(rest, long); \
    va_end(rest);

int fcntl(int fd, int command, ...) { ARGUMENT(command) return controlled(fd, command, argument); }
int fcntl64(int fd, int command, ...) { ARGUMENT(command) return controlled(fd, command, argument); }

/* -- bytes -------------------------------------------------------------------------------------------------------------------------- */

#define UNDER_LOCK(fd, call, record) \
    if (!is_tracked(fd)) \
        return call; \
    pthread_mutex_lock(&lock); \
    __typeof__(call) result = call; \
    int error = errno; \
    if (result >= 0) { \
        record; \
    } \
    pthread_mutex_unlock(&lock); \
    errno = error; \
    return result;

static uint64_t before_here(int fd, ssize_t written)
{
    return (uint64_t)(lseek(fd, 0, SEEK_CUR) - written);
}

/* Bytes that did not pass through our memory, or were written in several parts, are read back. */
static void put_again(int fd, uint64_t at, size_t size)
{
    char path[64], *data = malloc(size ? size : 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (!data || again < 0 || syscall(SYS_pread64, again, data, size, at) != (long)size) {
        perror("shim: reading again");
        abort();
    }
    put('W', inode_of(fd), at, 0, 0, data, size);
    syscall(SYS_close, again);
    free(data);
}

ssize_t write(int fd, const void *data, size_t size)
{
    UNDER_LOCK(fd, syscall(SYS_write, fd, data, size),
               put('W', inode_of(fd), before_here(fd, result), 0, 0, data, (size_t)result))
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    UNDER_LOCK(fd, syscall(SYS_pwrite64, fd, data, size, at), put('W', inode_of(fd), (uint64_t)at, 0, 0, data, (size_t)result))
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
    UNDER_LOCK(fd, syscall(SYS_pwrite64, fd, data, size, at), put('W', inode_of(fd), (uint64_t)at, 0, 0, data, (size_t)result))
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    UNDER_LOCK(fd, syscall(SYS_writev, fd, parts, count), put_again(fd, before_here(fd, result), (size_t)result))
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    UNDER_LOCK(fd, REAL(pwritev)(fd, parts, count, at), put_again(fd, (uint64_t)at, (size_t)result))
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at)
{
    UNDER_LOCK(fd, REAL(pwritev64)(fd, parts, count, at), put_again(fd, (uint64_t)at, (size_t)result))
}

ssize_t sendfile(int fd, int from, off_t *at, size_t size)
{
    UNDER_LOCK(fd, syscall(SYS_sendfile, fd, from, at, size), put_again(fd, before_here(fd, result), (size_t)result))
}

ssize_t sendfile64(int fd, int from, off64_t *at, size_t size)
{
    UNDER_LOCK(fd, syscall(SYS_sendfile, fd, from, at, size), put_again(fd, before_here(fd, result), (size_t)result))
}

ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *at, size_t size, unsigned flags)
{
    UNDER_LOCK(fd, syscall(SYS_copy_file_range, from, from_at, fd, at, size, flags),
               put_again(fd, at ? (uint64_t)(*at - result) : before_here(fd, result), (size_t)result))
}

int ftruncate(int fd, off_t size)
{
    UNDER_LOCK(fd, (int)syscall(SYS_ftruncate, fd, size), put('T', inode_of(fd), (uint64_t)size, 0, 0, 0, 0))
}

int ftruncate64(int fd, off64_t size)
{
    UNDER_LOCK(fd, (int)syscall(SYS_ftruncate, fd, size), put('T', inode_of(fd), (uint64_t)size, 0, 0, 0, 0))
}

static void put_size(int fd)
{
    struct stat info;
    if (!fstat(fd, &info))
        put('T', (uint64_t)info.st_ino, (uint64_t)info.st_size, 0, 0, 0, 0);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
    UNDER_LOCK(fd, (int)syscall(SYS_fallocate, fd, mode, at, size), put_size(fd))
}

int fallocate64(int fd, int mode, off64_t at, off64_t size)
{
    UNDER_LOCK(fd, (int)syscall(SYS_fallocate, fd, mode, at, size), put_size(fd))
}

static void put_sync(int fd)
{
    struct stat info;
    char path[64], whole[MAX_PATH];
    if (fstat(fd, &info))
        return;
    if (!S_ISDIR(info.st_mode)) {
        put('F', (uint64_t)info.st_ino, 0, 0, 0, 0, 0);
        return;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(path, whole, sizeof whole - 1);
    if (size > 0) {
        whole[size] = 0;
        put('D', 0, 0, whole, 0, 0, 0);
    }
}

/* The recorded disk never loses power, so nothing has to wait for it. */
int fsync(int fd)
{
    UNDER_LOCK(fd, 0, put_sync(fd))
}

int fdatasync(int fd)
{
    UNDER_LOCK(fd, 0, put_sync(fd))
}

/* -- names -------------------------------------------------------------------------------------------------------------------------- */

static int renamed(int from, const char *old, int to, const char *new, unsigned flags)
{
    char one[MAX_PATH], two[MAX_PATH];
    if (!(resolve(from, old, one) | resolve(to, new, two)))
        return (int)syscall(SYS_renameat2, from, old, to, new, flags);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_renameat2, from, old, to, new, flags), error = errno;
    if (!result)
        put(flags ? '?' : 'R', 0, 0, one, two, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) { return renamed(from, old, to, new, flags); }

static int named(char operation, int folder, const char *path, long number, long first, long second, long third, uint64_t detail)
{
    char whole[MAX_PATH];
    if (!resolve(folder, path, whole))
        return (int)syscall(number, folder, first, second, third);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(number, folder, first, second, third), error = errno;
    if (!result)
        put(operation, detail, 0, whole, 0, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int unlinkat(int folder, const char *path, int flags)
{
    return named('U', folder, path, SYS_unlinkat, (long)path, flags, 0, 0);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
int mkdirat(int folder, const char *path, mode_t mode)
{
    return named('M', folder, path, SYS_mkdirat, (long)path, (long)mode, 0, 0);
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    char one[MAX_PATH], two[MAX_PATH];
    if (!resolve(to, new, two) || !resolve(from, old, one))
        return (int)syscall(SYS_linkat, from, old, to, new, flags);
    pthread_mutex_lock(&lock);
    int result = (int)syscall(SYS_linkat, from, old, to, new, flags), error = errno;
    if (!result)
        put('L', 0, 0, one, two, 0, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }
